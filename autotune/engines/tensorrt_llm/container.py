"""TensorRT-LLM in a container: what is its own there.

By NVIDIA's documentation: `docker run --ipc host --gpus all --ulimit memlock=-1 --ulimit stack=67108864`
(docs/source/quick-start-guide.md), shared memory of the container's own in the place of the host's. Its image adds
TensorRT's libraries to LD_LIBRARY_PATH in the file that bash reads at its start (docker/common/install_tensorrt.sh,
BASH_ENV in docker/Dockerfile.multi), so its programs are started by bash.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.engines.containers.engine import EngineContainers
from autotune.engines.containers.guest import FOLDER, Guest
from autotune.engines.tensorrt_llm import preflight_child
from autotune.engines.tensorrt_llm.command import (
    ASK_VERSIONS,
    UNKNOWN_VERSIONS,
    command_of,
    own_env,
    serve_argv,
    served_name,
)
from autotune.engines.tensorrt_llm.options import FILE_NAME, render_options
from autotune.errors import Problem
from autotune.records.spec import ContainerSpec, StudySpec

CHILD = f"{FOLDER}/tensorrt_llm/preflight_child.py"
STAND_IN = ("python3", "-m", "autotune.engines.simulated.trtllm")
"""In an image that has autotune."""

STACK_BYTES = 67_108_864
REGISTRY = "nvcr.io/"
EXAMPLE = "nvcr.io/nvidia/tensorrt-llm/release:1.2.1"


def trtllm_containers(spec: StudySpec, container: ContainerSpec) -> EngineContainers:
    """Return the containers of a study of TensorRT-LLM, or of its stand-in where the study simulates."""
    return EngineContainers(spec, container, _guest(spec), simulated=spec.simulated)


def _guest(spec: StudySpec) -> Guest:
    engine = spec.engine
    program = command_of(engine) if engine.command or engine.simulate is None else STAND_IN
    return Guest(
        program=program,
        command=lambda launch: serve_argv(
            program, spec.model, f"{launch.folder}/{FILE_NAME}", port=launch.port, host=launch.host
        ),
        model_name=lambda _: served_name(spec.model),
        files=lambda launch: {FILE_NAME: render_options(launch.args)},
        mounts=(FILE_NAME,),
        children=children(),
        env=own_env(spec.engine),
        by_bash=True,
        stack_bytes=STACK_BYTES,
        ask_versions=ASK_VERSIONS,
        unknown_versions=UNKNOWN_VERSIONS,
    )


def children() -> dict[str, Path]:
    """The child that asks TorchLlmArgs, and vLLM's, whose loop it runs, side by side as they stand here."""
    return {
        CHILD: Path(preflight_child.__file__),
        f"{FOLDER}/vllm/preflight_child.py": preflight_child.LOOP,
    }


def image_problems(container: ContainerSpec, example: str = EXAMPLE) -> Iterator[Problem]:
    """NVIDIA's registry has no tag `latest`, and what is measured is a release."""
    _, _, name = container.image.rpartition("/")
    if container.image.startswith(REGISTRY) and ":" not in name and "@" not in name:
        yield Problem(
            path=("engine", "container", "image"),
            message=f"{container.image} names no release",
            hint=f"for example {example}",
        )
