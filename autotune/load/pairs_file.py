"""Files of (prompt, answer) lengths in tokens: JSON Lines of objects or pairs, or CSV.

{"input_tokens": 512, "output_tokens": 64}      [512, 64]      input_tokens,output_tokens
                                                               512,64
"""

from __future__ import annotations

from functools import partial

from autotune.load.lengths import ListedPairs
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

PROMPT_NAMES = ("input_tokens", "prompt_tokens", "input_length", "ContextTokens")
ANSWER_NAMES = ("output_tokens", "completion_tokens", "output_length", "GeneratedTokens")
_HINT = "a row is a pair of lengths: [512, 64], {input_tokens: 512, output_tokens: 64}, or CSV with these columns"


def read_pairs(path: str) -> tuple[ListedPairs, tuple[str, ...]]:
    """Return the pairs in a file, and notes about rows that were skipped. Raises InputError."""
    lines = lines_of(path, "workload.lengths")
    if is_json(path, "workload.lengths"):
        found: Rows[tuple[int, int]] = sound_rows(path, lines, _from_json, _HINT)
    else:
        columns = (0, 1)
        first = next(lines_of(path, "workload.lengths"), (0, b"0,0"))[1]
        if not first.strip()[:1].isdigit():
            next(lines)
            columns = columns_of(header_of(first))
        found = sound_rows(path, lines, partial(_from_csv, columns=columns), _HINT)
    return ListedPairs(pairs=found.rows), found.notes


def columns_of(header: list[str]) -> tuple[int, int]:
    """Return where prompt and answer lengths stand; the first two columns when the header names neither."""
    return (
        next((header.index(name) for name in PROMPT_NAMES if name in header), 0),
        next((header.index(name) for name in ANSWER_NAMES if name in header), 1),
    )


def _from_json(line: bytes) -> tuple[int, int]:
    value = json_value(line)
    if isinstance(value, list) and len(value) == 2:
        return tokens(value[0], "prompt"), tokens(value[1], "answer")
    if not isinstance(value, dict):
        raise BadRowError(f"not a pair of lengths: {value!r:.80}")
    return _named(value, PROMPT_NAMES), _named(value, ANSWER_NAMES)


def _named(row: dict[str, object], names: tuple[str, ...]) -> int:
    name = next((name for name in names if name in row), names[0])
    return tokens(row.get(name), name)


def _from_csv(line: bytes, columns: tuple[int, int]) -> tuple[int, int]:
    fields = csv_fields(line)
    if len(fields) <= max(columns):
        raise BadRowError(f"{len(fields)} columns, {max(columns) + 1} are needed")
    return tokens(fields[columns[0]], "prompt"), tokens(fields[columns[1]], "answer")
