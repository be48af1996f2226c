"""Lengths of prompts and outputs in tokens: their bounds, and drawing one."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.records.spec import FixedLength, Length, LogNormalLength, UniformLength

if TYPE_CHECKING:
    from numpy.random import Generator


def shortest(length: Length) -> int:
    """The least number of tokens that `length` can give."""
    return length.tokens if isinstance(length, FixedLength) else length.low


def longest(length: Length) -> int:
    """The greatest number of tokens that `length` can give."""
    return length.tokens if isinstance(length, FixedLength) else length.high


def sample(length: Length, rng: Generator) -> int:
    """Draw a number of tokens. Every kind but the fixed takes exactly one number from `rng`."""
    match length:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return int(rng.integers(low, high, endpoint=True))
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            return min(max(round(rng.lognormal(math.log(median), sigma)), low), high)
