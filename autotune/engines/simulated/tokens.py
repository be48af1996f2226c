"""A stand-in tokenizer and the identity of prefixes.

Every token id has a word of its own, three syllables after a space (id 0 is ` bababa`), so encode(decode(ids)) == ids.
Any other text is cut into pieces that hash to ids: the same text always gives the same tokens.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from zlib import crc32

_SYLLABLES = tuple(consonant + vowel for consonant in "bdfghjklmnprst" for vowel in "aeiou")
_BASE = len(_SYLLABLES)
_RANK = {syllable: rank for rank, syllable in enumerate(_SYLLABLES)}
_PIECE = re.compile(r"\s?\w{1,6}|\s?[^\w\s]|\s")

WORD_LENGTH = 7  # a space and three syllables; 70**3 words are enough for every vocabulary
CHAT_OVERHEAD_TOKENS = 4  # start, role, end of head, end of turn: what a chat template adds to each message


def word(token: int) -> str:
    """The text of one token."""
    high, low = divmod(token, _BASE)
    return " " + _SYLLABLES[high // _BASE % _BASE] + _SYLLABLES[high % _BASE] + _SYLLABLES[low]


def decode(tokens: Sequence[int]) -> str:
    """The text of several tokens."""
    return "".join(map(word, tokens))


@dataclass(frozen=True, slots=True)
class Tokenizer:
    """Texts to ids below `size`, the model's vocabulary."""

    size: int

    def encode(self, text: str) -> list[int]:
        """Token ids of a text: a piece of up to six word characters, or one other character, is one token."""
        return [self._token(piece) for piece in _PIECE.findall(text)]

    def _token(self, piece: str) -> int:
        syllables = [_RANK.get(piece[start : start + 2]) for start in (1, 3, 5)]
        if len(piece) == WORD_LENGTH and piece[0] == " " and None not in syllables:
            first, second, third = (rank or 0 for rank in syllables)
            return ((first * _BASE + second) * _BASE + third) % self.size
        return crc32(piece.encode()) % self.size

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of (role, content) messages under a plain chat template, with the assistant's turn opened."""
        turns = (
            [*(self._token(f"<{role}{n}>") for n in range(CHAT_OVERHEAD_TOKENS)), *self.encode(content)]
            for role, content in (*messages, ("assistant", ""))
        )
        return [token for turn in turns for token in turn]

    def output_token(self, seed: int, position: int) -> int:
        """The token that a request (its `seed`) puts out at a position: always the same one."""
        return (seed * 2_654_435_761 + (position + 1) * 40_503) % self.size


@dataclass(frozen=True, slots=True)
class Prefix:
    """What the scheduler is told: the first `tokens` of the prompt belong to `group`. Group -1: nothing is shared."""

    group: int
    tokens: int


class PrefixIndex:
    """Maps prompts to the scheduler's prefix groups by chains of block hashes.

    A prompt joins the group of the request that first brought its longest known run of whole blocks; a prompt whose
    first block is new opens a group with all of its blocks. Holds the latest `capacity` blocks.
    """

    def __init__(self, *, block_tokens: int, capacity: int) -> None:
        self._block_tokens = block_tokens
        self._capacity = capacity
        self._group_of: OrderedDict[int, int] = OrderedDict()
        self._groups = 0

    def find(self, tokens: Sequence[int]) -> Prefix:
        """Place a prompt, and remember its blocks."""
        chain = self._chain(tokens)
        known = next((depth for depth, key in enumerate(chain) if key not in self._group_of), len(chain))
        group = self._group_of[chain[known - 1]] if known else self._open()
        for key in chain:
            self._remember(key, group)
        return Prefix(group, (known or len(chain)) * self._block_tokens) if chain else Prefix(-1, 0)

    def _chain(self, tokens: Sequence[int]) -> list[int]:
        size, key, chain = self._block_tokens, 0, []
        for start in range(0, len(tokens) - len(tokens) % size, size):
            key = hash((key, tuple(tokens[start : start + size])))
            chain.append(key)
        return chain

    def _open(self) -> int:
        self._groups += 1
        return self._groups - 1

    def _remember(self, key: int, group: int) -> None:
        self._group_of.setdefault(key, group)
        self._group_of.move_to_end(key)
        if len(self._group_of) > self._capacity:
            self._group_of.popitem(last=False)

    def clear(self) -> None:
        """Forget every block, so that no later prompt joins an old group."""
        self._group_of.clear()
