"""The best configuration as a canary that Argo Rollouts takes back when an SLO is missed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.deploy.deployment import Deployment
from autotune.deploy.limits import replicas_of
from autotune.deploy.pod import config_map, labels, pod_notes, pod_template, service
from autotune.deploy.promql import query_of
from autotune.deploy.shell import header
from autotune.deploy.timing import startup_budget_s
from autotune.deploy.yamltext import yaml_file
from autotune.errors import InputError
from autotune.records.spec import Bound, EngineKind, Slo

API = "argoproj.io/v1alpha1"
WEIGHTS = (10, 25, 50)
"""Per cent of the replicas; the last step is all of them."""

WINDOW = "5m"  # what a query looks back on: a pause of as much goes before the first
CHECKS = 5
FAILURES = 1  # SLO violations come in bursts (docs/measurement.md): one missed check of five is let pass
PROMETHEUS = "http://prometheus-server.monitoring.svc.cluster.local"


def export(deployment: Deployment) -> Mapping[str, str]:
    """argo-rollouts.yaml: a canary in steps, taken back when an SLO is missed by the engine's own Prometheus metrics.

    Raises InputError where none of the SLOs has such a metric, and for an engine that is not started.
    """
    name, files = deployment.name, config_map(deployment)
    metrics = list(_metrics(deployment))
    if not metrics:
        raise InputError(
            "none of the study's SLOs has a Prometheus metric of the engine", "there is nothing to judge by"
        )
    documents = [
        *([files] if files else []),
        {
            "apiVersion": API,
            "kind": "AnalysisTemplate",
            "metadata": {"name": f"{name}-slo"},
            "spec": {
                "args": [{"name": "canary-hash"}, {"name": "prometheus", "value": PROMETHEUS}],
                "metrics": metrics,
            },
        },
        _rollout(deployment),
        service(deployment, name),
    ]
    comments = header(deployment, [*_comments(deployment), *pod_notes(deployment)])
    return {"argo-rollouts.yaml": yaml_file(comments, *documents)}


def _rollout(deployment: Deployment) -> dict[str, Any]:
    name = deployment.name
    replicas, _ = replicas_of(deployment)
    return {
        "apiVersion": API,
        "kind": "Rollout",
        "metadata": {"name": name, "labels": labels(deployment)},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": 2 * startup_budget_s(deployment),
            "selector": {"matchLabels": labels(deployment)},
            "template": pod_template(deployment),
            "strategy": {"canary": {"maxSurge": 1, "maxUnavailable": 0, "steps": list(_steps(name))}},
        },
    }


def _steps(name: str) -> Iterator[Mapping[str, Any]]:
    latest = {"name": "canary-hash", "valueFrom": {"podTemplateHashValue": "Latest"}}
    for weight in WEIGHTS:
        yield {"setWeight": weight}
        yield {"pause": {"duration": WINDOW}}
        yield {"analysis": {"templates": [{"templateName": f"{name}-slo"}], "args": [latest]}}


def _metrics(deployment: Deployment) -> Iterator[Mapping[str, Any]]:
    pods = f'pod=~"{deployment.name}-{{{{args.canary-hash}}}}-.*"'
    for slo in deployment.spec.objective.slos:
        query = query_of(slo.metric, deployment.engine, pods, WINDOW)
        if query is None:
            continue
        yield {
            "name": slo.metric.replace("_", "-").replace(".", "-"),
            "interval": "1m",
            "count": CHECKS,
            "failureLimit": FAILURES,
            **_conditions(slo, query.per_unit),
            "provider": {"prometheus": {"address": "{{args.prometheus}}", "query": query.text}},
        }


def _conditions(slo: Slo, per_unit: float) -> dict[str, str]:
    """With no traffic the result is empty or NaN, and fits neither: the rollout pauses for somebody to look."""
    limit = f"{slo.limit * per_unit:.6g}"
    good, bad = ("<=", ">") if slo.bound is Bound.MAX else (">=", "<")
    return {
        "successCondition": f"len(result) > 0 && result[0] {good} {limit}",
        "failureCondition": f"len(result) > 0 && result[0] {bad} {limit}",
    }


def _comments(deployment: Deployment) -> Iterator[str]:
    replicas, why = replicas_of(deployment)
    unknown = [
        slo.metric
        for slo in deployment.spec.objective.slos
        if query_of(slo.metric, deployment.engine, "", WINDOW) is None
    ]
    yield f"Replicas: {replicas}, {why}."
    yield "Weights are shares of whole replicas, as there is no traffic router: few replicas make few real steps."
    yield "Judged by the engine's own clock, on Prometheus's buckets: coarser than what was measured, network left out."
    yield "Prometheus must scrape the pods and label them `pod`; its address is the argument `prometheus`."
    if unknown:
        yield f"Not judged, having no metric of the engine: {', '.join(unknown)}."
    if deployment.engine is EngineKind.TENSORRT_LLM:
        yield "TensorRT-LLM shows them at /prometheus/metrics, with return_perf_metrics: true only: " + (
            "as was measured."
            if deployment.args.get("return_perf_metrics") is True
            else "NOT measured, and not in the options below; without it the rollout pauses."
        )
