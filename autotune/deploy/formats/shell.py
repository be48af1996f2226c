"""A script that starts what was measured."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from autotune.deploy.containers import left_out, run_lines
from autotune.deploy.deployment import Deployment
from autotune.deploy.environment import environment_of
from autotune.deploy.formats import trtllm_yaml
from autotune.deploy.inside import inside_of
from autotune.deploy.shell import (
    LISTEN,
    checked,
    export_line,
    header,
    joined,
    limit_words,
    option_lines,
    program_folder,
)


def export(deployment: Deployment) -> Mapping[str, str]:
    """serve.sh: the command that was measured, in its container if it ran in one; HOST and PORT are the caller's.

    Exported, it names no path of the machine that measured but the model's, so the engine is looked for on PATH; in
    `best/` it starts the very program. A simulated study gives the command that a real one would have.
    Raises InputError for what a command line can't carry.
    """
    contained = deployment.spec.engine.container is not None
    start = run_lines(deployment) if contained else _started_here(deployment)
    comments = [*limit_words(deployment), *left_out(deployment)]
    lines = ["#!/bin/sh", header(deployment, comments) + "set -eu", *start]
    files = trtllm_yaml.export(deployment) if inside_of(deployment).files else {}
    return {"serve.sh": checked("\n".join(lines) + "\n"), **files}


def _started_here(deployment: Deployment) -> list[str]:
    command = deployment.spec.engine.command if deployment.asked.here else ()
    inside = inside_of(deployment, command)
    files = [f'--config "$(dirname "$0")/{name}"' for name in inside.files]
    environment = environment_of(deployment).values
    return [
        *program_folder(command),
        *(export_line(name, value) for name, value in environment.items()),
        joined([f"exec {shlex.join(inside.start)}", *option_lines(inside.options), *LISTEN, *files]),
    ]
