"""Requests as a file for other programs: JSON Lines, or Parquet where pyarrow is installed.

A row a request: its level (from 0), whether it is `measured` (it started inside the window, which begins once the
engine is warm), the fields of `RequestRecord`, and `ttft_ms`, `tpot_ms`, `e2e_ms` by our definitions
(docs/vocabulary.md). Times in `_s` count from the beginning of the level.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from autotune.errors import EnvironmentFault, InputError
from autotune.records.trial import LevelRecord, RequestRecord
from autotune.trial.store import write_atomically

Exporter = Callable[[Sequence[LevelRecord]], None]
DERIVED = ("ttft_ms", "tpot_ms", "e2e_ms")


def exporter_to(path: Path) -> Exporter:
    """Return the function that writes levels to `path`, in the format of its suffix. Asked before anything is measured:

    Raises InputError for another suffix or a folder that isn't there, EnvironmentFault where pyarrow is missing.
    """
    formats = {".jsonl": _jsonl, ".parquet": _parquet}
    if path.suffix not in formats:
        raise InputError(
            f"{path}: requests can't be exported as {path.suffix or 'a file without a suffix'!r}",
            f"end the name in {' or '.join(formats)}",
        )
    if not path.absolute().parent.is_dir():
        raise InputError(f"{path}: its folder does not exist", "make it first")
    if path.suffix == ".parquet" and importlib.util.find_spec("pyarrow") is None:
        raise EnvironmentFault(
            "Parquet needs pyarrow, which is not installed",
            "pip install 'autotune-llm[parquet]', or end the name in .jsonl",
        )
    return lambda levels: write_atomically(path, formats[path.suffix](rows(levels)))


def rows(levels: Sequence[LevelRecord]) -> Iterator[dict[str, Any]]:
    """Yield a row for each request of each level, in order of sending."""
    for index, level in enumerate(levels):
        begin_s, end_s = level.window_s
        for request in level.requests:
            measured = not request.warmup and begin_s <= request.start_s < end_s
            derived = {name: getattr(request, name) for name in DERIVED}
            yield {"level": index, "measured": measured, **asdict(request), **derived}


def _jsonl(found: Iterator[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in found).encode()


def _parquet(found: Iterator[dict[str, Any]]) -> bytes:
    import pyarrow as pa  # noqa: PLC0415 - an extra
    from pyarrow import parquet  # noqa: PLC0415

    kinds = {"int": pa.int64(), "float": pa.float64(), "str": pa.string(), "bool": pa.bool_()}
    plain = [{name: list(value) if isinstance(value, tuple) else value for name, value in row.items()} for row in found]
    schema = pa.schema([(name, _arrow(annotation, kinds, pa.list_)) for name, annotation in columns().items()])
    sink = io.BytesIO()
    parquet.write_table(pa.Table.from_pylist(plain, schema=schema), sink)
    return sink.getvalue()


def columns() -> dict[str, str]:
    """Return every column and its type as `RequestRecord` spells it: a column may hold nothing but None."""
    of_record = {field.name: str(field.type) for field in fields(RequestRecord)}
    return {"level": "int", "measured": "bool", **of_record, **dict.fromkeys(DERIVED, "float | None")}


def _arrow(annotation: str, kinds: Mapping[str, Any], list_of: Callable[[Any], Any]) -> Any:  # noqa: ANN401 - untyped
    name = annotation.removesuffix(" | None")
    inside = name.removeprefix("tuple[").removesuffix(", ...]")
    return kinds[name] if inside == name else list_of(kinds[inside])
