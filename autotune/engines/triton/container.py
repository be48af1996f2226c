"""Triton in a container: what is its own there; flags as for TensorRT-LLM, whose options NVIDIA asks for here too."""

from __future__ import annotations

from autotune.engines.containers.engine import EngineContainers
from autotune.engines.containers.guest import FOLDER as INSIDE
from autotune.engines.containers.guest import Guest
from autotune.engines.tensorrt_llm.container import STACK_BYTES, children
from autotune.engines.triton.command import (
    ASK_VERSIONS,
    FOLDER,
    HEALTH_PATH,
    UNKNOWN_VERSIONS,
    files,
    own_env,
    serve_argv,
)
from autotune.engines.triton.repository import FRONT
from autotune.records.spec import ContainerSpec, StudySpec

EXAMPLE = "nvcr.io/nvidia/tritonserver:25.12-trtllm-python-py3"


def triton_containers(spec: StudySpec, container: ContainerSpec) -> EngineContainers:
    """Return the containers of a study of Triton, or of its stand-in; `spec.engine.command` is set."""
    return EngineContainers(spec, container, _guest(spec), simulated=spec.simulated)


def _guest(spec: StudySpec) -> Guest:
    program = spec.engine.command
    return Guest(
        program=program,
        command=lambda launch: serve_argv(
            program, f"{INSIDE}/{FOLDER}", spec.model, port=launch.port, host=launch.host
        ),
        model_name=lambda _: FRONT,
        files=lambda launch: files(launch.args, spec.model, launch.gpus),
        mounts=(FOLDER,),
        children=children(),
        env=own_env(spec.engine),
        by_bash=True,
        stack_bytes=STACK_BYTES,
        health_path=HEALTH_PATH,
        ask_versions=ASK_VERSIONS,
        unknown_versions=UNKNOWN_VERSIONS,
    )
