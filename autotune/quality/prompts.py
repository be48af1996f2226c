"""The prompts of the check: a file in, texts out. Blank lines part the prompts of a text file; JSONL has one a line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from autotune.errors import InputError

SHIPPED = Path(__file__).parent / "prompts.txt"
FEWEST = 8  # below that an engine's noise can't be told from a change
_HINT = "one prompt a line, or parted by blank lines; in JSONL an object with `prompt` or `text` a line"


def read_prompts(path: str | None) -> tuple[str, ...]:
    """Return the prompts of a file (None: of the shipped one), each once. Raises InputError when they can't be used."""
    file = SHIPPED if path is None else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise InputError(f"{file}: the prompts can't be read: {reason}", "give a text file, or leave it out") from error
    found = tuple(dict.fromkeys(_jsonl(file, text) if file.suffix == ".jsonl" else _plain(text)))
    if len(found) < FEWEST:
        raise InputError(f"{file}: {len(found)} prompts are too few, {FEWEST} is the least", _HINT)
    return found


def _plain(text: str) -> Iterator[str]:
    """Paragraphs where blank lines part them, else lines."""
    blocks = [block for block in text.split("\n\n") if block.strip()]
    for block in blocks if len(blocks) > 1 else text.splitlines():
        if stripped := block.strip():
            yield stripped


def _jsonl(file: Path, text: str) -> Iterator[str]:
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise InputError(f"{file}:{number}: not JSON: {error}", _HINT) from error
        prompt = row.get("prompt", row.get("text")) if isinstance(row, dict) else None
        if not isinstance(prompt, str) or not prompt.strip():
            raise InputError(f"{file}:{number}: no text under `prompt` or `text`", _HINT)
        yield prompt
