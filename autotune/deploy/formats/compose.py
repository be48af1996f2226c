"""The best configuration as a compose file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.deploy.containers import container_of, left_out, wants_hub
from autotune.deploy.deployment import Deployment
from autotune.deploy.environment import environment_of, filled
from autotune.deploy.image import image_of
from autotune.deploy.inside import FOLDER, HEALTH_CHECK, HUB, inside_of
from autotune.deploy.shell import header, limit_words
from autotune.deploy.timing import PROBE_PERIOD_S, startup_budget_s, startup_words, stop_grace_s
from autotune.deploy.yamltext import yaml_file
from autotune.engines.containers.runline import INSIDE_PORT, SHM_SIZE
from autotune.engines.net import HOST


def export(deployment: Deployment) -> Mapping[str, str]:
    """compose.yaml: image, command, GPUs, shared memory, health check and stop time, for `docker compose up`.

    One file whichever the engine (compose 2.23.1 or newer for TensorRT-LLM, whose options are a `config` in it).
    """
    inside = inside_of(deployment)
    document: dict[str, Any] = {"name": deployment.name, "services": {"engine": _service(deployment)}}
    if volumes := _named_volumes(deployment):
        document["volumes"] = {name: {} for name in volumes}
    if inside.files:
        document["configs"] = {_key(name): {"content": _literal(text)} for name, text in inside.files.items()}
    comments = [
        f"Image: {image_of(deployment).why}.",
        f"Start_period is the {startup_words(deployment)}.",
        f"Stop_grace_period: {stop_grace_s(deployment)} s, from the stop ladder that measured it.",
        *limit_words(deployment),
        *left_out(deployment),
    ]
    return {"compose.yaml": yaml_file(header(deployment, comments), document)}


def _service(deployment: Deployment) -> dict[str, Any]:
    inside = inside_of(deployment)
    entry, *command = map(_literal, inside.words)
    service: dict[str, Any] = {
        "image": _literal(image_of(deployment).reference),
        "entrypoint": [entry],
        "command": command,
        "environment": _environment(deployment),
        "ports": [f"${{HOST:-{HOST}}}:${{PORT:-8000}}:{INSIDE_PORT}"],
        "shm_size": SHM_SIZE,
        "volumes": _volumes(deployment),
        "configs": [{"source": _key(name), "target": f"{FOLDER}/{name}"} for name in inside.files],
        "healthcheck": _health(deployment),
        "stop_grace_period": f"{stop_grace_s(deployment)}s",
        "restart": "unless-stopped",
    }
    if deployment.gpus:
        device = {"driver": "nvidia", "count": deployment.gpus, "capabilities": ["gpu"]}
        service["ulimits"] = {"memlock": -1}
        service["deploy"] = {"resources": {"reservations": {"devices": [device]}}}
    return {key: value for key, value in service.items() if value not in ({}, [])}


def _health(deployment: Deployment) -> dict[str, Any]:
    return {
        "test": ["CMD", *HEALTH_CHECK],
        "interval": f"{PROBE_PERIOD_S}s",
        "timeout": "6s",
        "retries": 3,
        "start_period": f"{startup_budget_s(deployment)}s",
    }


def _literal(text: str) -> str:
    """Text in which compose finds no variable."""
    return text.replace("$", "$$")


def _environment(deployment: Deployment) -> dict[str, str]:
    def needed(name: str) -> str:
        return f"${{{name}:?set {name}, which the engine needs}}"

    values = environment_of(deployment).values
    hub = {"HF_HUB_CACHE": HUB} if wants_hub(deployment) else {}
    return {**{name: filled(value, _literal, needed) for name, value in values.items()}, **hub}


def _volumes(deployment: Deployment) -> list[Any]:
    folder = deployment.model_folder
    # The long form: a colon in the model's path would part the short one.
    model = {"type": "bind", "source": _literal(folder or ""), "target": _literal(folder or ""), "read_only": True}
    hub = ["hub:" + HUB] if wants_hub(deployment) else []
    return [*([model] if folder else []), *hub, *map(_literal, container_of(deployment).mounts)]


def _named_volumes(deployment: Deployment) -> list[str]:
    named = [mount.partition(":")[0] for mount in container_of(deployment).mounts]
    return [*(["hub"] if wants_hub(deployment) else []), *named]


def _key(file: str) -> str:
    return file.replace(".", "-")
