"""A pod that serves what was measured: what a Deployment and a Rollout have in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.deploy.containers import HUB_NAMES, container_of, left_out, wants_hub
from autotune.deploy.deployment import Deployment
from autotune.deploy.environment import environment_of, filled
from autotune.deploy.image import image_of
from autotune.deploy.inside import FOLDER, HUB, inside_of
from autotune.deploy.shell import limit_words
from autotune.deploy.timing import (
    PROBE_PERIOD_S,
    drain_s,
    startup_budget_s,
    startup_words,
    stop_grace_s,
)
from autotune.engines.containers.runline import INSIDE_PORT
from autotune.engines.secrets import REFERENCE

APP = "app.kubernetes.io/name"
SHM_LIMIT = "16Gi"  # as the containers of a study have it
PORT_NAME = "http"
SLACK_S = 5


def pod_template(deployment: Deployment) -> dict[str, Any]:
    """Return the template: one engine, probed, drained and stopped as it was measured."""
    return {
        "metadata": {"labels": labels(deployment)},
        "spec": {
            "terminationGracePeriodSeconds": drain_s(deployment) + stop_grace_s(deployment) + SLACK_S,
            "enableServiceLinks": False,  # vLLM reads VLLM_*, which a service called `vllm` would set
            "containers": [_container(deployment)],
            "volumes": list(_volumes(deployment)),
        },
    }


def labels(deployment: Deployment) -> dict[str, str]:
    """Return what selects the pods."""
    return {APP: deployment.name}


def service(deployment: Deployment, name: str) -> dict[str, Any]:
    """Return a Service inside the cluster."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels(deployment)},
        "spec": {
            "selector": labels(deployment),
            "ports": [{"name": PORT_NAME, "port": INSIDE_PORT, "targetPort": PORT_NAME}],
        },
    }


def config_map(deployment: Deployment) -> dict[str, Any] | None:
    """Return the engine's files; None for an engine that has none."""
    files = inside_of(deployment).files
    if not files:
        return None
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": f"{deployment.name}-options", "labels": labels(deployment)},
        "data": dict(files),
    }


def pod_notes(deployment: Deployment) -> list[str]:
    """Return comment lines: where the numbers come from, what must exist, what was not measured."""
    environment, name = environment_of(deployment), deployment.name
    secret = (
        f"kubectl create secret generic {name}-env {' '.join(f'--from-literal={n}=...' for n in environment.needed)}"
    )
    folder = deployment.model_folder
    return [
        f"Image: {image_of(deployment).why}.",
        f"StartupProbe, {startup_words(deployment)}.",
        f"Termination: {drain_s(deployment)} s to be taken out of service and for answers under way (p99 of E2E),",
        f"then the {stop_grace_s(deployment)} s of the stop ladder that measured it, and {SLACK_S} s to spare.",
        "CPU and memory were not limited when it was measured and are not here; /dev/shm counts as memory.",
        *([f"Secret: {secret}"] if environment.needed else []),
        *([f"Volume: the claim {name}-model holds what lay in {folder}."] if folder else []),
        *(
            ["The hub's cache is empty at each start; mount a claim there to start faster."]
            if wants_hub(deployment)
            else []
        ),
        *limit_words(deployment),
        *left_out(deployment),
    ]


def _container(deployment: Deployment) -> dict[str, Any]:
    command, *arguments = map(_literal, inside_of(deployment).words)
    probe = {"httpGet": {"path": "/health", "port": PORT_NAME}, "periodSeconds": PROBE_PERIOD_S}
    container: dict[str, Any] = {
        "name": "engine",
        "image": image_of(deployment).reference,
        "command": [command],
        "args": arguments,
        "env": list(_env(deployment)),
        "ports": [{"name": PORT_NAME, "containerPort": INSIDE_PORT}],
        "startupProbe": {**probe, "failureThreshold": startup_budget_s(deployment) // PROBE_PERIOD_S},
        "readinessProbe": {**probe, "timeoutSeconds": 5, "failureThreshold": 3},
        "livenessProbe": {**probe, "timeoutSeconds": 5, "failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["sleep", str(drain_s(deployment))]}}},
        "volumeMounts": list(_mounts(deployment)),
    }
    if deployment.gpus:
        count = str(deployment.gpus)
        container["resources"] = {"requests": {"nvidia.com/gpu": count}, "limits": {"nvidia.com/gpu": count}}
    return container


def _literal(text: str) -> str:
    """Text in which Kubernetes finds no variable: it reads `$$` as `$`, `$(X)` as X's value."""
    return text.replace("$", "$$")


def _env(deployment: Deployment) -> Iterator[Mapping[str, Any]]:
    """Secrets first and by key, since `$(X)` reaches only what stands before it."""
    environment = environment_of(deployment)
    for name in environment.needed:
        reference = {"name": f"{deployment.name}-env", "key": name}
        yield {"name": name, "valueFrom": {"secretKeyRef": reference}}
    for name, value in environment.values.items():
        if REFERENCE.fullmatch(value) and REFERENCE.findall(value) == [name]:
            continue
        yield {"name": name, "value": filled(value, _literal, lambda piece: f"$({piece})")}
    if wants_hub(deployment) and not HUB_NAMES & set(environment.values):
        yield {"name": "HF_HUB_CACHE", "value": HUB}


def _mounts(deployment: Deployment) -> Iterator[Mapping[str, Any]]:
    yield {"name": "shm", "mountPath": "/dev/shm"}  # noqa: S108 - the engine's own shared memory
    if deployment.model_folder is not None:
        yield {"name": "model", "mountPath": deployment.model_folder, "readOnly": True}
    if wants_hub(deployment):
        yield {"name": "hub", "mountPath": HUB}
    for name in inside_of(deployment).files:
        yield {"name": "options", "mountPath": f"{FOLDER}/{name}", "subPath": name, "readOnly": True}
    for index, mount in enumerate(container_of(deployment).mounts):
        yield {"name": f"volume-{index}", "mountPath": mount.split(":")[1]}


def _volumes(deployment: Deployment) -> Iterator[Mapping[str, Any]]:
    yield {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": SHM_LIMIT}}
    if deployment.model_folder is not None:
        yield {"name": "model", "persistentVolumeClaim": {"claimName": f"{deployment.name}-model", "readOnly": True}}
    if wants_hub(deployment):
        yield {"name": "hub", "emptyDir": {}}
    if inside_of(deployment).files:
        yield {"name": "options", "configMap": {"name": f"{deployment.name}-options"}}
    for index, _ in enumerate(container_of(deployment).mounts):
        yield {"name": f"volume-{index}", "emptyDir": {}}
