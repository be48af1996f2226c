"""The `docker run` line of a deployment: the image that was measured, GPUs and address by the caller's environment."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence

from autotune.deploy.deployment import Deployment
from autotune.deploy.environment import PATH, environment_of
from autotune.deploy.image import image_of
from autotune.deploy.inside import FOLDER, HUB, Inside, config, inside_of
from autotune.deploy.shell import LISTEN, export_line, joined, option_lines
from autotune.deploy.timing import stop_grace_s
from autotune.engines.containers.runline import (
    ALL_INTERFACES,
    INSIDE_PORT,
    gpu_options,
    host_mounts,
    limit_options,
    on_host_network,
    split_environment,
)
from autotune.engines.net import HOST
from autotune.records.spec import ContainerSpec

HUB_NAMES = {"HF_HOME", "HF_HUB_CACHE"}
"""A study that sets one of these has said itself where the hub's cache is."""


def container_of(deployment: Deployment) -> ContainerSpec:
    """Return the study's container as it may be deployed: elsewhere, what mounts or names a path of the machine that
    measured is left out; `left_out` tells what. Without one, docker's defaults."""
    container = deployment.spec.engine.container
    if container is None:
        return ContainerSpec(image=image_of(deployment).reference)
    if deployment.asked.here:
        return container
    return ContainerSpec(
        runtime=container.runtime,
        image=container.image,
        mounts=tuple(mount for mount in container.mounts if not _of_the_host(mount)),
        options=tuple(word for option in _options(container) if not _named_paths(option) for word in option),
    )


def left_out(deployment: Deployment) -> list[str]:
    """Return comment lines on what of the study's container is only for the machine that measured."""
    container = deployment.spec.engine.container
    if container is None or deployment.asked.here:
        return []
    mounts = [mount.split(":")[1] for mount in container.mounts if _of_the_host(mount)]
    options = [option[0].partition("=")[0] for option in _options(container) if _named_paths(option)]
    what = [*(f"the mount of {inside}" for inside in mounts), *(f"the option {name}" for name in options)]
    return [f"Left out, naming paths where it was measured: {', '.join(what)}"] if what else []


def _of_the_host(mount: str) -> bool:
    return mount.startswith(("/", "~", "."))


def _options(container: ContainerSpec) -> Iterator[tuple[str, ...]]:
    """Each option of `run` with its values."""
    option: tuple[str, ...] = ()
    for word in container.options:
        if word.startswith("-") and option:
            yield option
            option = ()
        option = (*option, word)
    if option:
        yield option


def _named_paths(option: Sequence[str]) -> bool:
    return any(PATH.search(word) for word in option)


def run_lines(deployment: Deployment) -> list[str]:
    """Return shell lines that start the measured words in their image; values go in by name."""
    container, inside = container_of(deployment), inside_of(deployment)
    environment = environment_of(deployment)
    split = split_environment(environment.values, secret=("${",))
    hosted = on_host_network(container)
    entry, *before_options = inside.start
    options = [
        *limit_options(container, memlock=_on_gpus(deployment)),
        *split.options,
        *(word for mount in _mounts(deployment, container) for word in ("--volume", mount)),
        *container.options,
        *("--entrypoint", entry, image_of(deployment).reference),
        *before_options,
    ]
    return [
        *(export_line(name, value) for name, value in environment.values.items() if name in split.client),
        joined(
            [
                f"exec {container.runtime} run --rm --stop-timeout {stop_grace_s(deployment)}",
                *([] if hosted else [f'--publish "${{HOST:-{HOST}}}:${{PORT:-8000}}:{INSIDE_PORT}"']),
                *_machine(deployment, container),
                *_files(inside),
                *option_lines(options),
                *option_lines(inside.options),
                *(LISTEN if hosted else (f"--host {ALL_INTERFACES}", f"--port {INSIDE_PORT}")),
                *(shlex.join(config(name)) for name in inside.files),
            ]
        ),
    ]


def _on_gpus(deployment: Deployment) -> bool:
    """A stand-in in a container of this machine wants none."""
    return deployment.gpus > 0 and not (deployment.best.simulated and deployment.asked.here)


def _mounts(deployment: Deployment, container: ContainerSpec) -> list[str]:
    folder = deployment.model_folder
    return [*([f"{folder}:{folder}:ro"] if folder else []), *host_mounts(container)]


def _machine(deployment: Deployment, container: ContainerSpec) -> list[str]:
    """GPUs and the hub's cache: all of them, or those that GPUS names; UUIDs of the machine that measured mean nothing
    elsewhere."""
    if deployment.best.simulated and deployment.asked.here:
        return []
    gpus = ['--gpus "${GPUS:-all}"' if container.runtime == "docker" else '--device "nvidia.com/gpu=${GPUS:-all}"']
    return [
        *(gpus if deployment.gpus and gpu_options(container, ("any",)) else []),
        *(_hub() if wants_hub(deployment) else []),
    ]


def wants_hub(deployment: Deployment) -> bool:
    """Whether the hub's cache is to be mounted: a model by name, and an environment that says nothing of its cache."""
    return deployment.model_folder is None and not HUB_NAMES & set(environment_of(deployment).values)


def _hub() -> list[str]:
    return [f'--volume "${{HF_HUB_CACHE:-$HOME/.cache/huggingface/hub}}:{HUB}"', f"--env HF_HUB_CACHE={HUB}"]


def _files(inside: Inside) -> list[str]:
    here = '$(cd "$(dirname "$0")" && pwd)'
    return [f'--volume "{here}/{name}:{FOLDER}/{name}:ro"' for name in inside.files]
