"""Known downgrades: what vLLM turns off or changes by itself, told apart from warnings that are noise."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cache
from importlib import resources


@cache
def known_downgrades() -> Mapping[str, re.Pattern[str]]:
    """What is downgraded, and the pattern of a line that says so, as downgrades.yaml has them."""
    import yaml  # noqa: PLC0415  needed once an engine has started

    text = resources.files("autotune.engines.vllm").joinpath("downgrades.yaml").read_text(encoding="utf-8")
    return {row["name"]: re.compile(row["pattern"]) for row in yaml.safe_load(text)}


def downgrade_of(message: str) -> str | None:
    """What a message says was downgraded, None for any other message."""
    return next((name for name, pattern in known_downgrades().items() if pattern.search(message)), None)


def downgrades(messages: Iterable[str]) -> tuple[tuple[str, str], ...]:
    """(what was downgraded, the first message that says so), each once, in the order of the messages."""
    found: dict[str, str] = {}
    for message in messages:
        if (name := downgrade_of(message)) is not None:
            found.setdefault(name, message)
    return tuple(found.items())
