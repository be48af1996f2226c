"""How an engine's program is found and started: its path, its environment, its Python, and what versions that has."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines.secrets import REFERENCE
from autotune.errors import EnvironmentFault

VERSIONS_TIMEOUT_S = 60.0

_PYTHON = re.compile(r"^python[\d.]*$")


def resolved_model(model: str) -> str:
    """A model that is an existing path made absolute, any other name (a hub's) as it is."""
    return str(Path(model).expanduser().absolute()) if Path(model).expanduser().exists() else model


def resolved_env(env: Mapping[str, str]) -> dict[str, str]:
    """`env` with each `${NAME}` taken from the tuner's environment."""

    def value_of(match: re.Match[str]) -> str:
        name = match.group(1)
        value = os.environ.get(name)
        if value is None:
            raise EnvironmentFault(
                f"engine.env refers to ${{{name}}}, which is not set", f"export {name} before the study is started"
            )
        return value

    return {name: REFERENCE.sub(value_of, text) for name, text in env.items()}


def activated(command: Sequence[str], env: Mapping[str, str]) -> dict[str, str]:
    """What activating the command's virtual environment would set: engines' compilers look for `ninja` on the PATH."""
    program = program_path(command, env)
    if program is None or not (program.parent.parent / "pyvenv.cfg").is_file():
        return {}
    path = os.pathsep.join((str(program.parent), env.get("PATH", os.environ.get("PATH", os.defpath))))
    return {"PATH": path, "VIRTUAL_ENV": str(program.parent.parent)}


def program_path(command: Sequence[str], env: Mapping[str, str]) -> Path | None:
    """Absolute path of the command's program, links not followed; None when there is none."""
    found = shutil.which(command[0], path=env.get("PATH", os.environ.get("PATH")))
    return Path(found).absolute() if found else None


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


def ask_versions(program: Path | None, script: str, unknown: Mapping[str, str | None]) -> Mapping[str, str | None]:
    """What `script` prints as JSON in the program's own Python, over `unknown`; that alone where it can't be asked."""
    python = engine_python(program) if program else None
    if python is None:
        return unknown
    try:
        done = subprocess.run(
            [str(python), "-I", "-c", script],
            capture_output=True,
            check=True,
            cwd="/",
            text=True,
            timeout=VERSIONS_TIMEOUT_S,
        )
        return {**unknown, **json.loads(done.stdout)}
    except (OSError, subprocess.SubprocessError, ValueError):
        return unknown
