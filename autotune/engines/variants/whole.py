"""Whether a folder holds a checkpoint that an engine can load: Hugging Face's layout, or a TensorRT engine's."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from autotune.engines.model_files import missing_in

ENGINES = "rank*.engine"
"""What `trtllm-build` writes beside its config.json; the tokenizer then is the model's own."""


def faults_in(folder: Path) -> Iterator[str]:
    """Yield what keeps it from being loaded; nothing of one that is whole."""
    config = folder / "config.json"
    if config.is_file() and not _is_mapping(config):
        yield "config.json can't be read"
    engines = sorted(folder.glob(ENGINES))
    if not engines:
        yield from missing_in(folder)
    elif not config.is_file():
        yield "config.json is missing"
    yield from (f"{engine.name} is empty" for engine in engines if engine.stat().st_size == 0)


def _is_mapping(path: Path) -> bool:
    try:
        return isinstance(json.loads(path.read_text(encoding="utf-8")), dict)
    except ValueError:
        return False
