"""Shell scripts that start what was measured: comment lines of origin and doubts, exports, quoted words."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Iterable, Sequence

from autotune.deploy.deployment import Deployment
from autotune.deploy.environment import PATH, environment_of, filled
from autotune.deploy.evidence import BestFile
from autotune.engines.nesting import nested
from autotune.engines.vllm import render_argv
from autotune.errors import InputError

LISTEN = ('--host "${HOST:-127.0.0.1}"', '--port "${PORT:-8000}"')
"""Words of a command line by which the caller's environment says where to listen."""


def joined(lines: Sequence[str]) -> str:
    """One command over several lines."""
    return " \\\n  ".join(lines)


def header(deployment: Deployment, more: Iterable[str] = (), *, environment: bool = True) -> str:
    """Return comment lines: where this comes from, every reason not to trust it, what the engine's environment needs
    (unless the file starts no engine), and `more`."""
    best, needs = deployment.best, _needs(deployment) if environment else []
    facts = [
        "Written by autotune; the evidence is in best.json.",
        f"study {_comment(best.study)}, trial {best.trial}, fingerprint {best.fingerprint}, {best.created_utc}",
        *_labels(best),
    ]
    return "".join(f"# {_one_line(line)}\n" for line in [*facts, *needs, *more])


def _needs(deployment: Deployment) -> list[str]:
    environment, lines = environment_of(deployment), []
    if paths := sorted(name for name, value in nested(deployment.args).items() if PATH.match(str(value))):
        lines.append(f"Must be there where it runs: what these arguments name as paths: {', '.join(paths)}")
    if environment.needed:
        lines.append(f"Needs these in the environment: {', '.join(environment.needed)}")
    if environment.left_out:
        lines.append(f"Left out, being paths where it was measured: {', '.join(environment.left_out)}")
    return lines


def _one_line(text: str) -> str:
    """A stranger's line break would end the comment."""
    return re.sub(r"[^\x20-\x7e]", "?", text)


def _labels(best: BestFile) -> list[str]:
    labels = ["SIMULATED: no real engine ran; not evidence"] if best.simulated else []
    if not best.confirmed:
        labels.append("NOT CONFIRMED: see confirmed, slos and warnings in best.json")
    if best.quality == "unchecked":
        labels.append("QUALITY UNCHECKED: settings that may change the output were not checked")
    return labels


def limit_words(deployment: Deployment) -> list[str]:
    """Return comment lines about the suggested limits as arguments of the engine, which were not measured."""
    limits = deployment.best.suggested_limits
    if limits is None or not deployment.extra_args:
        return []
    words = " ".join(render_argv(deployment.extra_args))
    added = "added after the measured arguments" if deployment.asked.limits else "not added: export with --limits"
    return [f"Suggested by a model of queueing, not measured, {added}: {words}"]


def export_line(name: str, value: str) -> str:
    """The line that sets a variable; what it refers to must be set by the caller."""
    needed = lambda piece: f'"${{{piece}?set {piece}, which the engine needs}}"'  # noqa: E731
    return f"export {name}={filled(value, lambda piece: shlex.quote(piece) if piece else '', needed)}"


def option_lines(words: Sequence[str]) -> list[str]:
    """Quoted words, each option with its values on its own line."""
    lines: list[str] = []
    for word in words:
        if word.startswith("--") or not lines:
            lines.append(shlex.quote(word))
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return lines


def program_folder(command: Sequence[str]) -> list[str]:
    """The programs beside the engine's own are on its PATH while it is measured (JIT compilers look for `ninja`)."""
    folder = posixpath.dirname(command[0]) if command else ""
    return [f'export PATH={shlex.quote(folder)}:"$PATH"'] if folder else []


def _comment(text: str) -> str:
    """ASCII without line breaks, which would end the comment."""
    return text if re.fullmatch(r"[A-Za-z0-9._/-]+", text) else json.dumps(text)


def checked(text: str) -> str:
    """The text, if a file and a command line can carry it. Raises InputError."""
    if "\0" in text:
        raise InputError("a value of the best configuration has a NUL character", "no command line can carry it")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InputError(f"a value of the best configuration is no valid text: {error}", "use UTF-8") from error
    return text
