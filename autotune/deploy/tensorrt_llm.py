"""The best configuration as TensorRT-LLM takes it: the options file that was measured, and a script that starts it."""

from __future__ import annotations

import shlex

from autotune.deploy.evidence import BestFile
from autotune.deploy.shell import LISTEN, checked, export, header, joined, program_folder
from autotune.engines.command import resolved_model
from autotune.engines.tensorrt_llm.command import DEFAULT_COMMAND, QUIET_ENV
from autotune.engines.tensorrt_llm.options import FILE_NAME, render_options
from autotune.errors import InputError
from autotune.records.spec import StudySpec


def options_yaml(best: BestFile, spec: StudySpec) -> str:
    """Return the options file: below its comment the very bytes that were measured."""
    return checked(header(best, spec) + render_options(best.engine.args))


def serve_sh(best: BestFile, spec: StudySpec) -> str:
    """Return `serve.sh`: the command that was measured, but for host and port, which the caller's environment sets.

    A simulated study gives the command that a real one would have.
    """
    model = resolved_model(best.model)
    if model.startswith("-"):
        raise InputError(f"the model's name {best.model!r} begins with a dash", "it would be read as an option")
    command = best.engine.command or DEFAULT_COMMAND
    serve = () if command[-1] == "serve" else ("serve",)
    env = {**QUIET_ENV, **spec.engine.env}
    lines = [
        "#!/bin/sh",
        header(best, spec) + "set -eu",
        *program_folder(best.engine.command),
        *(export(name, value) for name, value in env.items()),
        joined([f"exec {shlex.join((*command, *serve, model))}", *LISTEN, f'--config "$(dirname "$0")/{FILE_NAME}"']),
    ]
    return checked("\n".join(lines) + "\n")
