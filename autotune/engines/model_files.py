"""Whether a model's folder holds all that an engine loads: config, tokenizer, and weights that are whole."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from pathlib import Path

TOKENIZERS = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json", "spiece.model")
INDICES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")
MAX_HEADER_BYTES = 100_000_000  # the format's own limit (safetensors, src/tensor.rs)


def missing_in(folder: Path, *, weights: bool = True) -> Iterator[str]:
    """Yield what is wrong with the model in `folder`; nothing when it can be loaded without a network.

    `weights` False: the engine makes them up (load_format dummy).
    """
    if not (folder / "config.json").is_file() and not (folder / "params.json").is_file():
        yield "config.json is missing"
    if not any((folder / name).is_file() for name in TOKENIZERS) and not any(folder.glob("*.tiktoken")):
        yield f"the tokenizer is missing: none of {', '.join(TOKENIZERS)}"
    if weights:
        yield from _weights(folder)


def _weights(folder: Path) -> Iterator[str]:
    index = next((folder / name for name in INDICES if (folder / name).is_file()), None)
    files = _indexed(index) if index else sorted([*folder.glob("*.safetensors"), *folder.glob("*.bin")])
    if not files:
        yield "there are no weights: neither *.safetensors nor *.bin"
    for path in files:
        if not path.is_file():
            yield f"{path.name} is missing"
        elif path.suffix == ".safetensors" and not _whole(path):
            yield f"{path.name} is cut off or damaged"


def _indexed(index: Path) -> list[Path]:
    """The files that an index of weights names; those it can't name for being damaged are missing as a whole."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (OSError, ValueError, KeyError, AttributeError):
        return [index.with_name(f"{index.name} (readable)")]
    return [index.parent / name for name in sorted(names)]


def _whole(path: Path) -> bool:
    """Whether a safetensors file is as long as its header says: 8 bytes of length, the header, the tensors."""
    with path.open("rb") as file:
        start = file.read(8)
        length = struct.unpack("<Q", start)[0] if len(start) == 8 else MAX_HEADER_BYTES
        if length >= MAX_HEADER_BYTES:
            return False
        try:
            header = json.loads(file.read(length))
            ends = [tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"]
        except (ValueError, LookupError, TypeError, AttributeError):
            return False
    return path.stat().st_size == 8 + length + max(ends, default=0)
