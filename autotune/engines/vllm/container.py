"""vLLM in a container: what is its own there."""

from __future__ import annotations

from pathlib import Path

from autotune.engines.command import resolved_model
from autotune.engines.containers.engine import EngineContainers
from autotune.engines.containers.guest import FOLDER, Guest
from autotune.engines.vllm.command import (
    ASK_VERSIONS,
    DEFAULT_COMMAND,
    UNKNOWN_VERSIONS,
    api_key,
    serve_argv,
    served_name,
)
from autotune.records.spec import ContainerSpec, StudySpec

CHILD = f"{FOLDER}/preflight_child.py"


def vllm_containers(spec: StudySpec, container: ContainerSpec, *, simulated: bool) -> EngineContainers:
    """Return the containers of a study of vLLM; `simulated`: of what pretends to be one."""
    return EngineContainers(spec, container, _guest(spec), simulated=simulated)


def _guest(spec: StudySpec) -> Guest:
    program = tuple(spec.engine.command) or DEFAULT_COMMAND
    return Guest(
        program=program,
        command=lambda launch: serve_argv(program, spec.model, launch.args, launch.port, launch.host),
        model_name=lambda args: served_name(args) or resolved_model(spec.model),
        children={CHILD: Path(__file__).parent / "preflight_child.py"},
        api_key=api_key,
        ask_versions=ASK_VERSIONS,
        unknown_versions=UNKNOWN_VERSIONS,
    )
