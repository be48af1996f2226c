"""Datasets of real conversations: JSON Lines, one row of OpenAI `messages` each.

    {"messages": [{"role": "user", "content": "…"}], "max_tokens": 200, "model": "m", "extra_body": {"top_p": 0.9}}

`model`, `max_tokens` and `extra_body` are optional and pass through to the server.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from autotune.errors import InputError
from autotune.load.lengths import sample
from autotune.load.seeds import Stream, generator
from autotune.records.spec import Length
from autotune.records.trial import RequestPlan

_SHOWN = 20
_KEYS = frozenset({"messages", "model", "max_tokens", "extra_body"})
# What the client itself sets: another value would change what is measured.
_RESERVED = frozenset({"messages", "prompt", "model", "max_tokens", "stream", "stream_options", "n"})


class _BadRow(ValueError):
    """What is wrong with a line."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    messages: tuple[Mapping[str, Any], ...]
    model: str | None = None
    max_tokens: int | None = None
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatasetSource:
    """Rows in an order shuffled by the seed; each time round, another order."""

    rows: tuple[Row, ...]
    output_tokens: Length | None
    seed: int

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        cycle, place = divmod(index, len(self.rows))
        row = self.rows[_order(self.seed, cycle, len(self.rows))[place]]
        return RequestPlan(
            index=index,
            at_s=at_s,
            output_tokens=row.max_tokens or self._output_tokens(index),
            messages=row.messages,
            model=row.model,
            extra_body=row.extra_body,
        )

    def _output_tokens(self, index: int) -> int:
        if self.output_tokens is None:
            raise InputError("a row has no max_tokens and the workload no output_tokens", "set one of them")
        return sample(self.output_tokens, generator(self.seed, Stream.REQUEST, index))


@lru_cache(maxsize=8)
def _order(seed: int, cycle: int, rows: int) -> tuple[int, ...]:
    return tuple(generator(seed, Stream.ORDER, cycle).permutation(rows).tolist())


def read_dataset(path: str, *, needs_max_tokens: bool) -> tuple[Row, ...]:
    """Read every row of the JSONL file at `path`; blank lines are skipped.

    `needs_max_tokens`: each row must say its own, since the workload doesn't. Raises InputError with the first 20 bad
    lines as `file:line: problem`, or when the file can't be read or holds no row.
    """
    rows, problems = [], []
    for number, line in _lines(path):
        try:
            rows.append(_row(line, needs_max_tokens=needs_max_tokens))
        except _BadRow as error:
            problems.append(f"{path}:{number}: {error}")
    if problems:
        raise InputError(_listed(problems), "each line is a JSON object with OpenAI `messages`")
    if not rows:
        raise InputError(f"{path}: the dataset is empty", "each line is a JSON object with OpenAI `messages`")
    return tuple(rows)


def _lines(path: str) -> Iterator[tuple[int, bytes]]:
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except OSError as error:
        raise InputError(f"{path}: can't read the dataset: {error.strerror}", "check workload.dataset") from error


def _listed(problems: list[str]) -> str:
    more = len(problems) - _SHOWN
    return "\n".join(problems[:_SHOWN] + ([f"… and {more} more bad lines"] if more > 0 else []))


def _row(line: bytes, *, needs_max_tokens: bool) -> Row:
    """Raises _BadRow."""
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise _BadRow(f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise _BadRow(f"a {type(value).__name__} where an object belongs")
    if unknown := sorted(value.keys() - _KEYS):
        raise _BadRow(f"unknown key `{unknown[0]}`; request options belong under `extra_body`")
    max_tokens = value.get("max_tokens")
    if max_tokens is None and needs_max_tokens:
        raise _BadRow("no `max_tokens`, and the workload sets no output_tokens")
    if max_tokens is not None and (type(max_tokens) is not int or max_tokens < 1):
        raise _BadRow(f"`max_tokens` must be a whole number from 1 on, not {max_tokens!r}")
    if not isinstance(value.get("model"), str | None):
        raise _BadRow(f"`model` must be text, not {value['model']!r}")
    return Row(
        messages=_messages(value.get("messages")),
        model=value.get("model"),
        max_tokens=max_tokens,
        extra_body=_extra_body(value.get("extra_body")),
    )


def _messages(value: object) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise _BadRow("`messages` must be a list with at least one message")
    for message in value:
        if not isinstance(message, dict) or not isinstance(message.get("role"), str):
            raise _BadRow(f"a message must be an object with a `role`, not {message!r:.80}")
    return tuple(value)


def _extra_body(value: object) -> Mapping[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _BadRow(f"`extra_body` must be an object, not {value!r:.80}")
    if reserved := sorted(value.keys() & _RESERVED):
        raise _BadRow(f"`extra_body` may not set `{reserved[0]}`: the load client does")
    return value
