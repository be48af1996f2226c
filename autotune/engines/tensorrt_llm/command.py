"""How a `trtllm-serve` is started: its command line, environment and options file, and its versions."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines import command as shared
from autotune.engines.command import activated, program_path, resolved_env, resolved_model
from autotune.engines.hub import offline
from autotune.engines.net import HOST
from autotune.engines.secrets import secrets_of
from autotune.engines.tensorrt_llm.options import FILE_NAME, render_options
from autotune.records.spec import Args, EngineSpec
from autotune.records.trial import LaunchPlan

DEFAULT_COMMAND = ("trtllm-serve",)
STAND_IN = (sys.executable, "-m", "autotune.engines.simulated.trtllm")

QUIET_ENV: Mapping[str, str] = {"TRTLLM_NO_USAGE_STATS": "1"}
"""Usage statistics are sent unless this says no."""

ASK_VERSIONS = """
import importlib.metadata as m, json, platform
def version(name):
    try:
        return m.version(name)
    except m.PackageNotFoundError:
        return None
print(json.dumps({
    "tensorrt_llm": version("tensorrt_llm"),
    "engine_python": platform.python_version(),
    "torch": version("torch"),
    "cuda": next((v for v in (version("cuda-python"), version("nvidia-cuda-runtime-cu12")) if v), None),
    "transformers": version("transformers"),
}))
"""
"""Reads metadata only: importing TensorRT-LLM takes half a minute and wants a GPU."""

UNKNOWN_VERSIONS: Mapping[str, str | None] = dict.fromkeys(
    ("tensorrt_llm", "engine_python", "torch", "cuda", "transformers")
)


def command_of(engine: EngineSpec) -> tuple[str, ...]:
    """What starts the engine: the study's command, else its own, else the stand-in where the study simulates."""
    return engine.command or (STAND_IN if engine.simulate is not None else DEFAULT_COMMAND)


def serve_argv(command: Sequence[str], model: str, config: str, *, port: int, host: str = HOST) -> tuple[str, ...]:
    """`trtllm-serve serve MODEL --host H --port P --config FILE`: nothing tunable, as releases differ in which
    of command line and file wins."""
    serve = () if command[-1] == "serve" else ("serve",)
    return (
        *command, *serve, resolved_model(model), "--host", host, "--port", str(port), "--config", config,
    )  # fmt: skip


def launch_plan(
    engine: EngineSpec, model: str, args: Args, *, folder: Path, port: int, gpus: Sequence[str]
) -> LaunchPlan:
    """How to start these arguments, their file to be written in `folder`.

    Raises EnvironmentFault when `env` refers to a variable that isn't set.
    """
    env = {**own_env(engine), **resolved_env(engine.env)}
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts them; CUDA's own order is by speed
    command = command_of(engine)
    return LaunchPlan(
        argv=serve_argv(command, model, str((folder / FILE_NAME).absolute()), port=port),
        env={**activated(command, env), **offline(model, args, env), **env},
        host=HOST,
        port=port,
        model_name=served_name(model),
        files={FILE_NAME: render_options(args)},
        redacted=secrets_of(engine.env),
    )


def served_name(model: str) -> str:
    """The name that requests must give: of a folder its last part."""
    path = Path(resolved_model(model))
    return path.name if path.is_dir() else model


def own_env(engine: EngineSpec) -> Mapping[str, str]:
    """What the engine gets besides the study's own: no telemetry, and for the stand-in the machine that it pretends to
    run on."""
    simulated = engine.simulate
    if simulated is None:
        return QUIET_ENV
    return {
        **QUIET_ENV,
        "AUTOTUNE_SIM_GPU": simulated.gpu,
        "AUTOTUNE_SIM_TIME_SCALE": str(simulated.time_scale),
        "AUTOTUNE_SIM_FAULTS": ",".join(simulated.faults),
    }


def find_program(engine: EngineSpec, env: Mapping[str, str]) -> Path | None:
    """Absolute path of the engine's program, links not followed; None when there is none."""
    return program_path(command_of(engine), env)


def ask_versions(engine: EngineSpec) -> Mapping[str, str | None]:
    """Versions of TensorRT-LLM, its Python, torch and CUDA, asked in its own environment; None where unknown."""
    return shared.ask_versions(find_program(engine, engine.env), ASK_VERSIONS, UNKNOWN_VERSIONS)
