"""Shell scripts that start what was measured: comment lines of origin and doubts, exports, quoted words."""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping, Sequence

from autotune.deploy.evidence import BestFile
from autotune.errors import InputError
from autotune.records.spec import StudySpec

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")
_SECRET_NAME = re.compile(r"(^|_)(TOKEN|SECRET|PASSWORD|API_?KEY|ACCESS_KEY|CREDENTIALS?)$", re.IGNORECASE)
"""The study reader refuses a secret written out under such a name; one from elsewhere gets no further than here."""

LISTEN = ('--host "${HOST:-127.0.0.1}"', '--port "${PORT:-8000}"')
"""Words of a command line by which the caller's environment says where to listen."""


def joined(lines: Sequence[str]) -> str:
    """One command over several lines."""
    return " \\\n  ".join(lines)


def header(best: BestFile, spec: StudySpec) -> str:
    """Return comment lines: where this comes from, and every reason not to trust it."""
    facts = [
        f"study {_comment(best.study)}, trial {best.trial}, fingerprint {best.fingerprint}, {best.created_utc}",
        *_labels(best),
        *_needs(spec.engine.env),
    ]
    return "".join(f"# {line}\n" for line in ["Written by autotune; the evidence is in best.json.", *facts])


def _labels(best: BestFile) -> list[str]:
    labels = ["SIMULATED: no real engine ran; not evidence"] if best.simulated else []
    if not best.confirmed:
        labels.append("NOT CONFIRMED: see confirmed, slos and warnings in best.json")
    if best.quality == "unchecked":
        labels.append("QUALITY UNCHECKED: settings that may change the output were not checked")
    return labels


def _needs(env: Mapping[str, str]) -> list[str]:
    names = sorted({needed for name, value in env.items() for needed in _needed(name, value)})
    return [f"Needs these in the environment: {', '.join(names)}"] if names else []


def _needed(name: str, value: str) -> list[str]:
    """The variables that must be set for `name` to get its value; a secret written out is never copied."""
    references = _REFERENCE.findall(value)
    return references or ([name] if _SECRET_NAME.search(name) and _ENV_NAME.fullmatch(name) else [])


def export(name: str, value: str) -> str:
    """The line that sets a variable: a reference must be set by the caller, a secret is never written."""
    if not _ENV_NAME.fullmatch(name):
        raise InputError(f"{name!r} is no name for an environment variable", "letters, digits and _ only")
    if not _REFERENCE.search(value) and _SECRET_NAME.search(name):
        value = f"${{{name}}}"
    # Odd pieces are the names between `${` and `}`.
    pieces = [
        f'"${{{piece}?set {piece}, which the engine needs}}"' if index % 2 else shlex.quote(piece) if piece else ""
        for index, piece in enumerate(_REFERENCE.split(value))
    ]
    return f"export {name}={''.join(pieces)}"


def option_lines(words: Sequence[str], first: int) -> list[str]:
    """The first so many words on one line, then each option with its values on its own."""
    lines = [shlex.join(words[:first])]
    for word in words[first:]:
        if word.startswith("--"):
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
