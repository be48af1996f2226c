"""The best configuration as Kubernetes objects."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.deploy.deployment import Deployment
from autotune.deploy.limits import replicas_of
from autotune.deploy.pod import config_map, labels, pod_notes, pod_template, service
from autotune.deploy.shell import header
from autotune.deploy.timing import startup_budget_s
from autotune.deploy.yamltext import yaml_file


def export(deployment: Deployment) -> Mapping[str, str]:
    """kubernetes.yaml: a Deployment and its Service; probes, drain and stop time from what was measured."""
    replicas, why = replicas_of(deployment)
    name = deployment.name
    workload = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": labels(deployment)},
        "spec": {
            "replicas": replicas,
            "progressDeadlineSeconds": 2 * startup_budget_s(deployment),  # the image must be fetched too
            "selector": {"matchLabels": labels(deployment)},
            "template": pod_template(deployment),
        },
    }
    files = config_map(deployment)
    documents = [*([files] if files else []), workload, service(deployment, name)]
    comments = header(deployment, [f"Replicas: {replicas}, {why}.", *pod_notes(deployment)])
    return {"kubernetes.yaml": yaml_file(comments, *documents)}
