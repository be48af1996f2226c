"""What synthetic prompts are made of: random token ids, or English sentences cut to the token."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autotune.errors import InputError
from autotune.load.english import sentences
from autotune.load.tokenizer import Tokenizer, find_tokenizer
from autotune.records.spec import WorkloadSpec

if TYPE_CHECKING:
    from numpy.random import Generator

UNKNOWN_VOCAB = (100, 8000)
"""Ids that any tokenizer of a served model has and none of them treats as special, for when its size is unknown."""

# Special tokens stand at both ends: Mistral's tekken keeps the first 1,000 of 131,072 ids for them, DeepSeek-V3 the
# last 1,280 of 129,280. A share of 2 % clears both, and at least 100 ids do for small vocabularies.
_MARGIN_RATIO = 0.02
_MARGIN_MIN = 100
_CHARS_PER_TOKEN = 5  # of English, a little more than it takes, so that once is mostly enough


class Text(Protocol):
    """Makes tokens of prompts."""

    def tokens(self, rng: Generator, count: int) -> tuple[int, ...]:
        """`count` new tokens."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomText:
    """Ids in [low, high), each as likely as another."""

    low: int
    high: int

    def tokens(self, rng: Generator, count: int) -> tuple[int, ...]:
        """`count` new tokens."""
        return tuple(rng.integers(self.low, self.high, size=count).tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class NaturalText:
    """English sentences as the model's tokenizer writes them."""

    tokenizer: Tokenizer

    def tokens(self, rng: Generator, count: int) -> tuple[int, ...]:
        """`count` new tokens, from the beginning of a sentence."""
        ids: list[int] = []
        while len(ids) < count:
            text = sentences(rng, (count - len(ids)) * _CHARS_PER_TOKEN)
            ids += self.tokenizer.encode(f" {text}" if ids else text)
        return tuple(ids[:count])


def text_of(workload: WorkloadSpec, vocab_size: int | None, model: str | None) -> Text:
    """Return what the workload's synthetic prompts are made of. Raises InputError without the tokenizer it needs."""
    if workload.text == "natural":
        if model is None:
            raise InputError("natural text needs the model's tokenizer", "set text: random, or name the model")
        return NaturalText(tokenizer=find_tokenizer(model))
    low, high = plain_ids(vocab_size)
    return RandomText(low=low, high=high)


def plain_ids(vocab_size: int | None) -> tuple[int, int]:
    """Half-open range of token ids without special meaning. Raises InputError when there are none."""
    if vocab_size is None:
        return UNKNOWN_VOCAB
    if vocab_size < 2:
        raise InputError(f"a vocabulary of {vocab_size} tokens can't make prompts", "check the model's config.json")
    margin = min(max(_MARGIN_MIN, int(vocab_size * _MARGIN_RATIO)), vocab_size // 4)
    return margin, vocab_size - margin
