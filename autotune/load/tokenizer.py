"""The served model's tokenizer, from its folder or the hub's cache on this machine: nothing is downloaded.

The `tokenizers` package is an extra: only natural text and text prompts need it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Protocol

from autotune.errors import InputError

_FILE = "tokenizer.json"
_TRIES = 16


class Tokenizer(Protocol):
    """What texts and prompts need of a tokenizer."""

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; `special`: as a server makes them of a prompt, with the model's first token."""
        ...

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special ones included."""
        ...


class FastTokenizer:
    """A `tokenizer.json`, read by the `tokenizers` package."""

    def __init__(self, file: Path) -> None:
        try:
            import tokenizers  # noqa: PLC0415 - an extra
        except ImportError as error:
            raise InputError(
                "natural text and text prompts need the package `tokenizers`",
                "pip install 'autotune-llm[text]', or set text: random",
            ) from error
        try:
            self._tokenizer = tokenizers.Tokenizer.from_file(str(file))
        except Exception as error:  # the package raises bare Exceptions for files that it can't read
            raise InputError(f"{file} is no tokenizer: {error}", "check the model's folder") from error

    def encode(self, text: str, *, special: bool = False) -> list[int]:
        """The ids of a text; `special`: as a server makes them of a prompt, with the model's first token."""
        return list(self._tokenizer.encode(text, add_special_tokens=special).ids)

    def decode(self, ids: list[int]) -> str:
        """The text of ids, special ones included."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=False))


@lru_cache(maxsize=4)
def find_tokenizer(model: str) -> Tokenizer:
    """Return the tokenizer of a model that lies in a folder, or under its name in the hub's cache.

    Raises InputError when there is none on this machine, or the `tokenizers` package is missing.
    """
    file = _in_folder(model) or _in_cache(model)
    if file is None:
        raise InputError(
            f"there is no {_FILE} of {model} on this machine",
            "give the model as a folder, download it first (`hf download`), or set text: random",
        )
    return FastTokenizer(file)


def _in_folder(model: str) -> Path | None:
    file = Path(model).expanduser() / _FILE
    return file if file.is_file() else None


def _in_cache(model: str) -> Path | None:
    """The newest snapshot, as in huggingface_hub's layout: models--owner--name/snapshots/<commit>/tokenizer.json."""
    home = Path(os.environ.get("HF_HOME", "~/.cache/huggingface")).expanduser()
    hub = Path(os.environ.get("HF_HUB_CACHE", str(home / "hub")))
    found = hub.glob(f"models--{model.replace('/', '--')}/snapshots/*/{_FILE}")
    return max(found, key=lambda file: file.parent.stat().st_mtime, default=None)


def prompt_writer(model: str) -> Callable[[Sequence[int]], str]:
    """Return what writes token ids as text that the model's server reads as exactly as many tokens.

    Raises InputError as `find_tokenizer` does.
    """
    return partial(exact_text, find_tokenizer(model))


def exact_text(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """Return a text that a server reads as exactly `len(ids)` tokens: that of `ids`, or nearly.

    Decoding and encoding again may join or split tokens, so the text is cut or filled up until its count is right.
    Raises InputError when it can't be made right.
    """
    wanted = len(ids)
    kept = list(ids)
    for _ in range(_TRIES):
        text = tokenizer.decode(kept)
        count = len(tokenizer.encode(text, special=True))
        if count == wanted:
            return text
        kept = kept[: wanted - count] if count > wanted else [*kept, *ids[: wanted - count]]
    return _filled(tokenizer, tokenizer.decode(list(ids[: wanted // 2])), wanted)


def _filled(tokenizer: Tokenizer, text: str, wanted: int) -> str:
    """`text`, filled up by short words."""
    count = len(tokenizer.encode(text, special=True))
    for _ in range(_TRIES):
        if count >= wanted:
            break
        text += " a" * (wanted - count)
        count = len(tokenizer.encode(text, special=True))
    if count != wanted:
        raise InputError(f"no text of exactly {wanted} tokens was found", "send token ids instead")
    return text
