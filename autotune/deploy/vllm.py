"""The best configuration as vLLM takes it: a file for `vllm serve --config`, and a script that starts it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from autotune.deploy.evidence import BestFile
from autotune.deploy.shell import LISTEN, checked, export, header, joined, option_lines, program_folder
from autotune.engines.command import resolved_model
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
from autotune.engines.vllm import render_argv, render_yaml
from autotune.engines.vllm.command import serve_argv
from autotune.engines.vllm.container import HUB, model_mounts, wants_hub
from autotune.errors import InputError
from autotune.records.spec import ContainerSpec, StudySpec

_HOST_AND_PORT_WORDS = 4
_Start = Callable[[BestFile, StudySpec, Sequence[str], int], list[str]]
"""Shell lines that start the measured words, of which so many come before the options."""


def vllm_yaml(best: BestFile, spec: StudySpec) -> str:
    """Return `vllm.yaml`. Raises InputError for values that can't be written."""
    return checked(header(best, spec) + render_yaml(resolved_model(best.model), best.engine.args))


def serve_sh(best: BestFile, spec: StudySpec) -> str:
    """Return `serve.sh`: the command that was measured, but for host and port, which the caller's environment sets.

    Raises InputError for what a command line can't carry.
    """
    if resolved_model(best.model).startswith("-"):
        raise InputError(f"the model's name {best.model!r} begins with a dash", "vLLM would read it as an option")
    measured = serve_argv(best.engine.command, best.model, best.engine.args, port=0)[:-_HOST_AND_PORT_WORDS]
    fixed_words = len(measured) - len(render_argv(best.engine.args))
    start = _started_here if spec.engine.container is None else _started_in(spec.engine.container)
    lines = ["#!/bin/sh", header(best, spec) + "set -eu", *start(best, spec, measured, fixed_words)]
    return checked("\n".join(lines) + "\n")


def _started_here(best: BestFile, spec: StudySpec, measured: Sequence[str], fixed_words: int) -> list[str]:
    command, *options = option_lines(measured, first=fixed_words)
    return [
        *program_folder(best.engine.command),
        *(export(name, value) for name, value in spec.engine.env.items()),
        joined([f"exec {command}", *options, *LISTEN]),
    ]


def _started_in(container: ContainerSpec) -> _Start:
    """The image that was measured, GPUs and address by the caller's environment; values go in by name."""

    def start(best: BestFile, spec: StudySpec, measured: Sequence[str], fixed_words: int) -> list[str]:
        environment = split_environment(spec.engine.env, secret=("${",))
        image = best.versions.get("container_image") or container.image
        entry, *rest = measured
        mounts = [
            word for mount in (*model_mounts(best.model), *host_mounts(container)) for word in ("--volume", mount)
        ]
        options = [
            *limit_options(container, memlock=not best.simulated),
            *environment.options,
            *mounts,
            *container.options,
            *("--entrypoint", entry, image),
            *rest[: fixed_words - 1],
        ]
        hosted = on_host_network(container)
        return [
            *(export(name, value) for name, value in spec.engine.env.items() if name in environment.client),
            joined(
                [
                    f"exec {container.runtime} run --rm",
                    *([] if hosted else [f'--publish "${{HOST:-{HOST}}}:${{PORT:-8000}}:{INSIDE_PORT}"']),
                    *([] if best.simulated else [*_gpus(container), *_hub(best.model, spec.engine.env)]),
                    *option_lines(options, first=0)[1:],
                    *option_lines(rest[fixed_words - 1 :], first=0)[1:],
                    *(LISTEN if hosted else [f"--host {ALL_INTERFACES}", f"--port {INSIDE_PORT}"]),
                ]
            ),
        ]

    return start


def _gpus(container: ContainerSpec) -> list[str]:
    """All, or those that GPUS names: UUIDs of the machine that measured mean nothing elsewhere."""
    if not gpu_options(container, ("any",)):
        return []
    return ['--gpus "${GPUS:-all}"' if container.runtime == "docker" else '--device "nvidia.com/gpu=${GPUS:-all}"']


def _hub(model: str, names: Mapping[str, str]) -> list[str]:
    if not wants_hub(model, names):
        return []
    return [f'--volume "${{HF_HUB_CACHE:-$HOME/.cache/huggingface/hub}}:{HUB}"', f"--env HF_HUB_CACHE={HUB}"]
