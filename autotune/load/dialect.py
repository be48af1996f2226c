"""What a server takes of OpenAI's API and vLLM's additions to it, and what it tells of the tokens that it made."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

Decode = Callable[[Sequence[int]], str]
"""Writes token ids as text, by the served model's tokenizer."""


class Feature(StrEnum):
    """What a request may ask for and a server may refuse, by the field's name in the request."""

    MIN_TOKENS = "min_tokens"
    IGNORE_EOS = "ignore_eos"
    STREAM_OPTIONS = "stream_options"
    TEMPERATURE = "temperature"
    MAX_TOKENS = "max_tokens"  # refused by those that want max_completion_tokens
    PROMPT_IDS = "prompt"  # as token ids


UNCOUNTED = "it doesn't count tokens: each event of an answer is taken for one"

_WORDS = {
    Feature.MIN_TOKENS: "it takes no min_tokens",
    Feature.IGNORE_EOS: "it takes no ignore_eos: answers may end before the length asked for",
    Feature.STREAM_OPTIONS: "it takes no stream_options",
    Feature.TEMPERATURE: "it takes no temperature: answers may differ from run to run",
    Feature.MAX_TOKENS: "it takes max_completion_tokens in the place of max_tokens",
    Feature.PROMPT_IDS: "it takes no token ids: prompts are sent as text, which may be a few tokens longer or shorter",
}
# As servers call them where they don't use the field's name: include_usage is inside stream_options.
_ALIASES = {Feature.STREAM_OPTIONS: ("include_usage",), Feature.PROMPT_IDS: ("prompts",)}
_NO_IDS = re.compile(r"\b(str|string|text|token|tokens|ids|array|list|integers?)\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """`lacks` is what the server refuses; all else is asked for.

    `usage`: it counts the tokens of an answer; else each event counts as one. `chunk_usage`: ask it to count them with
    every event, for servers that put several tokens into one. `decode` writes prompts for servers without token ids.
    """

    lacks: frozenset[Feature] = frozenset()
    usage: bool = True
    chunk_usage: bool = False
    decode: Decode | None = field(default=None, compare=False, repr=False)

    def has(self, feature: Feature) -> bool:
        """Whether to ask for it."""
        return feature not in self.lacks

    def without(self, *features: Feature) -> Dialect:
        """The same, but asking for less."""
        return replace(self, lacks=self.lacks.union(features))

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing of a server that isn't like vLLM; nothing for one that is."""
        words = [_WORDS[feature] for feature in Feature if feature in self.lacks]
        if not self.usage:
            words.append(UNCOUNTED)
        if self.chunk_usage:
            words.append("its events carry several tokens, which it counts")
        return tuple(f"server: {word}" for word in words)


def refused(message: str, asked: Sequence[Feature]) -> tuple[Feature, ...]:
    """Those of `asked` that a server's refusal names."""
    return tuple(feature for feature in asked if _names(message, feature))


def _names(message: str, feature: Feature) -> bool:
    if feature is Feature.MAX_TOKENS:
        return "max_completion_tokens" in message
    if feature is Feature.PROMPT_IDS and not _NO_IDS.search(message):
        return False
    return any(re.search(rf"\b{name}\b", message) for name in (feature, *_ALIASES.get(feature, ())))
