"""How Triton is started: its OpenAI-compatible frontend over a model repository that is written for the trial."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.engines.command import activated, resolved_env, resolved_model
from autotune.engines.hub import offline
from autotune.engines.net import HOST
from autotune.engines.secrets import secrets_of
from autotune.engines.tensorrt_llm import command as trtllm
from autotune.engines.triton.repository import FRONT, repository
from autotune.records.spec import Args, EngineSpec, StudySpec
from autotune.records.trial import LaunchPlan

DEFAULT_COMMAND = ("python3", "/opt/tritonserver/python/openai/openai_frontend/main.py")
"""As it lies in NVIDIA's images from 24.11 on: Triton in one process with the frontend, no `tritonserver` beside it."""

STAND_IN = (sys.executable, "-m", "autotune.engines.simulated.triton")
STAND_IN_INSIDE = ("python3", *STAND_IN[1:])
"""Of an image that has autotune."""

FOLDER = "repository"
HEALTH_PATH = "/health/ready"

ASK_VERSIONS = """
import importlib.metadata as m, json, os, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({
    "tritonserver": os.environ.get("TRITON_SERVER_VERSION") or version("tritonserver"),
    "tensorrt_llm": version("tensorrt_llm"),
    "engine_python": platform.python_version(),
    "torch": version("torch"),
    "transformers": version("transformers"),
}))
"""
UNKNOWN_VERSIONS: Mapping[str, str | None] = dict.fromkeys(
    ("tritonserver", "tensorrt_llm", "engine_python", "torch", "transformers")
)


def with_command(spec: StudySpec) -> StudySpec:
    """The study with what starts the engine: its command, else Triton's, else the stand-in where it simulates."""
    engine = spec.engine
    stand_in = STAND_IN if engine.container is None else STAND_IN_INSIDE
    default = DEFAULT_COMMAND if engine.simulate is None else stand_in
    return replace(spec, engine=replace(engine, command=engine.command or default))


def own_env(engine: EngineSpec) -> Mapping[str, str]:
    """What it gets besides the study's own: TRTLLM_ORCHESTRATOR has Triton's own process spawn the ranks."""
    return {"TRTLLM_ORCHESTRATOR": "1", **trtllm.own_env(engine)}


def serve_argv(command: Sequence[str], folder: str, model: str, *, port: int, host: str = HOST) -> tuple[str, ...]:
    """The frontend over the repository in `folder`; `--backend` names the form of its requests to the model."""
    return (
        *command, "--model-repository", folder, "--tokenizer", resolved_model(model), "--backend", "tensorrtllm",
        "--host", host, "--openai-port", str(port),
    )  # fmt: skip


def files(args: Args, model: str, gpus: Sequence[str]) -> dict[str, str]:
    """The repository's files, by their paths in the trial's folder."""
    made = repository(args, model=resolved_model(model), gpus=gpus)
    return {f"{FOLDER}/{name}": text for name, text in made.items()}


def launch_plan(
    engine: EngineSpec, model: str, args: Args, *, folder: Path, port: int, gpus: Sequence[str]
) -> LaunchPlan:
    """How to start these arguments, their repository to be written in `folder`.

    Raises EnvironmentFault when `env` refers to a variable that isn't set.
    """
    env = {**own_env(engine), **resolved_env(engine.env)}
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    return LaunchPlan(
        argv=serve_argv(engine.command, str((folder / FOLDER).absolute()), model, port=port),
        env={**activated(engine.command, env), **offline(model, args, env), **env},
        host=HOST,
        port=port,
        model_name=FRONT,
        files=files(args, model, gpus),
        redacted=secrets_of(engine.env),
        health_path=HEALTH_PATH,
    )
