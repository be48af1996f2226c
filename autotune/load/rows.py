"""Files of requests, a row each: a few bad rows are skipped and told, many refuse the file."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any, Generic, TypeVar

from autotune.errors import InputError

T = TypeVar("T")

SKIPPED_MAX_RATIO = 0.1
"""More bad rows than this share make another workload of a file. Published ones have up to some per cent."""

TOKENS_MAX = 10_000_000
"""No model takes prompts so long; a number beyond it is something else, and would fill the memory."""

_SHOWN = 20


class BadRowError(ValueError):
    """What is wrong with a row."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows(Generic[T]):
    """The sound rows of a file, and a note about those that were skipped."""

    rows: tuple[T, ...]
    notes: tuple[str, ...] = ()


def sound_rows(
    path: str,
    numbered: Iterable[tuple[int, Any]],
    parse: Callable[[Any], T],
    hint: str,
    until: Callable[[T], bool] = lambda _: False,
) -> Rows[T]:
    """Parse every row up to the first for which `until` is true, skipping those for which `parse` raises BadRowError.

    `numbered` has each row with the number of its line (or its place in a list). Raises InputError with the first 20
    bad rows as `file:line: problem`, when more than a tenth is bad or none is sound.
    """
    rows: list[T] = []
    problems: list[str] = []
    for number, raw in numbered:
        try:
            rows.append(parse(raw))
        except BadRowError as error:
            problems.append(f"{path}:{number}: {error}")
        else:
            if until(rows[-1]):
                break
    total = len(rows) + len(problems)
    if len(problems) > SKIPPED_MAX_RATIO * total:
        raise InputError(_listed(problems), hint)
    if not rows:
        raise InputError(f"{path}: the file holds no requests", hint)
    return Rows(rows=tuple(rows), notes=(_note(problems, total),) if problems else ())


def _note(problems: list[str], total: int) -> str:
    share = len(problems) / total
    return f"{len(problems)} of {total} rows ({share:.2g}) were skipped, the first: {problems[0]}"


def _listed(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    return "\n".join(problems[:_SHOWN] + ([f"… and {more} more bad lines"] if more > 0 else []))


def lines_of(path: str, key: str) -> Iterator[tuple[int, bytes]]:
    """Yield the lines of a file that are not blank, with their numbers; `key` is the study's key that names it."""
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
    except OSError as error:
        raise InputError(f"{path}: can't be read: {error.strerror}", f"check {key}") from error


def is_json(path: str, key: str) -> bool:
    """Whether the first line begins an object or a list; else it is CSV."""
    first = next(lines_of(path, key), (0, b""))[1].lstrip()
    return first[:1] in (b"{", b"[")


def json_value(line: bytes) -> Any:  # noqa: ANN401 - a JSON value
    """Return the value of a line. Raises BadRowError."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRowError(f"not JSON: {error}") from error


def csv_fields(line: bytes) -> list[str]:
    """Return the fields of a line of CSV. Raises BadRowError."""
    try:
        return [field.strip() for field in next(csv.reader(StringIO(line.decode())))]
    except (UnicodeDecodeError, csv.Error, StopIteration) as error:
        raise BadRowError(f"not CSV: {error}") from error


def header_of(line: bytes) -> list[str]:
    """Return the names of a CSV's columns, none for a line that has none."""
    try:
        return csv_fields(line)
    except BadRowError:
        return []


def tokens(value: object, name: str) -> int:
    """Return a count of tokens, at least 1; text of CSV is converted. Raises BadRowError."""
    if isinstance(value, str) and value.isdecimal() and len(value) < len(str(TOKENS_MAX)):
        value = int(value)
    if type(value) is not int or not 1 <= value <= TOKENS_MAX:
        raise BadRowError(f"`{name}` must be a whole number from 1 to {TOKENS_MAX}, not {value!r:.40}")
    return value
