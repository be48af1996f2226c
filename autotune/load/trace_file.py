"""Recorded requests with their times and lengths: Mooncake's JSON Lines and Azure's CSV.

    {"timestamp": 27482, "input_length": 6955, "output_length": 52, "hash_ids": [46, 47, 2353, …]}

Times are milliseconds; each of `hash_ids` stands for a block of 512 tokens (the last may be shorter) and all before it,
so that equal ids at the start of two prompts are a shared beginning (github.com/kvcache-ai/Mooncake, FAST25-release).

    TIMESTAMP,ContextTokens,GeneratedTokens
    2023-11-16 18:17:03.9799600,4808,10

(github.com/Azure/AzurePublicDataset, AzureLLMInferenceDataset2023 and 2024). Nothing is said of shared beginnings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import lru_cache, partial
from operator import attrgetter
from pathlib import Path

from autotune.errors import InputError
from autotune.load.pairs_file import ANSWER_NAMES, PROMPT_NAMES, columns_of
from autotune.load.rows import (
    BadRowError,
    Rows,
    csv_fields,
    header_of,
    is_json,
    json_value,
    lines_of,
    sound_rows,
    tokens,
)

BLOCK_TOKENS = 512

_KEY = "load.trace.file"
_HINT = "Mooncake's JSON Lines (timestamp, input_length, output_length) or Azure's CSV (TIMESTAMP, ContextTokens, …)"
_TIME = "TIMESTAMP"
_TIME_MAX_MS = 1e15  # since 1970 it is the year 33658: larger ones are of another unit, or would overflow
_DISORDER_S = 60.0  # rows may stand this far from their place in time


@dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """A recorded request; `at_s` counts from the first of its file, `blocks` are the ids of its prompt's blocks."""

    at_s: float
    prompt_tokens: int
    output_tokens: int
    blocks: tuple[int, ...] = ()


def read_trace(path: str, until_s: float) -> Rows[Recorded]:
    """Read the requests of a trace in order of time, up to at least `until_s` after the first.

    A week of Azure's trace has 16 million lines: reading ends soon after what is asked for. Raises InputError when more
    than a tenth of the rows is bad, with the first 20 as `file:line: problem`.
    """
    try:
        stat = Path(path).stat()
    except OSError as error:
        raise InputError(f"{path}: can't read the trace: {error.strerror}", f"check {_KEY}") from error
    return _read(path, until_s, (stat.st_mtime_ns, stat.st_size))


@lru_cache(maxsize=2)
def _read(path: str, until_s: float, _: tuple[int, int]) -> Rows[Recorded]:
    """Every level of every trial replays the same trace."""
    numbered, parse = _format(path)
    found = sound_rows(path, numbered, parse, _HINT, until=_Past(until_s + _DISORDER_S))
    rows = sorted(found.rows, key=attrgetter("at_s"))
    begin_s = rows[0].at_s
    return replace(found, rows=tuple(replace(row, at_s=row.at_s - begin_s) for row in rows))


@dataclass(slots=True)
class _Past:
    """Whether a row is later than what is needed, counted from the first row."""

    limit_s: float
    begin_s: float | None = None

    def __call__(self, row: Recorded) -> bool:
        self.begin_s = begin_s = row.at_s if self.begin_s is None else self.begin_s
        return row.at_s - begin_s > self.limit_s


def _format(path: str) -> tuple[Iterator[tuple[int, bytes]], Callable[[bytes], Recorded]]:
    lines = lines_of(path, _KEY)
    if is_json(path, _KEY):
        return lines, _mooncake
    header = header_of(next(lines, (0, b""))[1])
    if _TIME not in header or not set(header) & set(PROMPT_NAMES) or not set(header) & set(ANSWER_NAMES):
        raise InputError(f"{path}:1: not the header of a trace: {','.join(header):.80}", _HINT)
    return lines, partial(_azure, columns=(header.index(_TIME), *columns_of(header)))


def _mooncake(line: bytes) -> Recorded:
    row = json_value(line)
    if not isinstance(row, dict):
        raise BadRowError(f"a {type(row).__name__} where an object belongs")
    at_ms = row.get("timestamp")
    if not isinstance(at_ms, int | float) or isinstance(at_ms, bool) or not 0 <= at_ms <= _TIME_MAX_MS:
        raise BadRowError(f"`timestamp` must be milliseconds from 0 to {_TIME_MAX_MS:g}, not {at_ms!r:.40}")
    prompt_tokens = tokens(row.get("input_length"), "input_length")
    return Recorded(
        at_s=at_ms / 1e3,
        prompt_tokens=prompt_tokens,
        output_tokens=tokens(row.get("output_length"), "output_length"),
        blocks=_blocks(row.get("hash_ids", []), prompt_tokens),
    )


def _blocks(value: object, prompt_tokens: int) -> tuple[int, ...]:
    if not isinstance(value, list) or not all(type(block) is int and block >= 0 for block in value):
        raise BadRowError(f"`hash_ids` must be a list of whole numbers, not {value!r:.60}")
    wanted = -(-prompt_tokens // BLOCK_TOKENS)
    if value and len(value) != wanted:
        raise BadRowError(
            f"{len(value)} hash_ids for {prompt_tokens} tokens: in blocks of {BLOCK_TOKENS} it is {wanted}"
        )
    return tuple(value)


def _azure(line: bytes, columns: tuple[int, int, int]) -> Recorded:
    fields = csv_fields(line)
    if len(fields) <= max(columns):
        raise BadRowError(f"{len(fields)} columns, {max(columns) + 1} are needed")
    time, prompt, answer = (fields[column] for column in columns)
    try:
        at = datetime.fromisoformat(time)
    except ValueError as error:
        raise BadRowError(f"not a time: {time:.40}") from error
    return Recorded(
        at_s=(at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp(),
        prompt_tokens=tokens(prompt, "prompt"),
        output_tokens=tokens(answer, "answer"),
    )
