"""Arguments as engines' files nest them: `a.b: 1` is `a: {b: 1}`."""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.records.spec import Args


def nested(args: Args) -> dict[str, Any]:
    """Arguments sorted by name, `a.b: 1` folded into `a: {b: 1}`, None left out."""
    folded: dict[str, Any] = {}
    for name, value in sorted(args.items()):
        if value is None:
            continue
        head, *path = name.split(".")
        if path:
            folded[head] = _with(folded.get(head) or {}, path, value)
        else:
            folded[head] = value
    return folded


def _with(mapping: Mapping[str, Any], path: list[str], value: Any) -> dict[str, Any]:
    head, *rest = path
    inner = _with(mapping.get(head) or {}, rest, value) if rest else value
    return {**mapping, head: inner}


def plain(value: Any) -> Any:
    """Mappings as the plain dicts and lists that YAML can write."""
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value
