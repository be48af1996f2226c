"""Lengths of prompts and answers in tokens, drawn alone or as correlated pairs."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autotune.records.spec import FixedLength, Length, LogNormalLength, UniformLength

if TYPE_CHECKING:
    from numpy.random import Generator

_GRID = 2000  # points of the quantile function that a mean is taken over


def sample(length: Length, rng: Generator) -> int:
    """Draw a number of tokens. Every kind but the fixed takes exactly one number from `rng`."""
    match length:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return int(rng.integers(low, high, endpoint=True))
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            return round(min(max(rng.lognormal(math.log(median), sigma), low), high))


def at_normal(length: Length, z: float) -> int:
    """The quantile of `length` at the level of a standard normal's `z`: 0 is the median."""
    match length:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            level = 0.5 * (1 + math.erf(z / math.sqrt(2)))
            return min(low + int(level * (high - low + 1)), high)
        case LogNormalLength(median=median, sigma=sigma, low=low, high=high):
            exponent = min(math.log(median) + sigma * z, math.log(high))  # a wide sigma would overflow
            return min(max(round(math.exp(exponent)), low), high)


def mean(length: Length) -> float:
    """The mean number of tokens, cut at its bounds as draws are; exact for all but the log-normal (to 1 %)."""
    if not isinstance(length, LogNormalLength):
        return (length.low + length.high) / 2
    from statistics import NormalDist  # noqa: PLC0415 - only here

    normal = NormalDist()
    return sum(at_normal(length, normal.inv_cdf((i + 0.5) / _GRID)) for i in range(_GRID)) / _GRID


class Pairs(Protocol):
    """Where a request's two lengths come from."""

    def draw(self, rng: Generator) -> tuple[int, int]:
        """Tokens of a prompt and of its answer."""
        ...

    @property
    def longest(self) -> tuple[int, int]:
        """The pair of the most tokens in all."""
        ...

    @property
    def shortest_prompt(self) -> int:
        """The least tokens that a prompt has."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnPairs:
    """Lengths of two distributions, independent of one another or with a rank correlation.

    A Gaussian copula: both are read off at the levels of two normals whose correlation is r = 2 sin(pi/6 rho), which
    gives the rank correlation (Spearman's) rho (Kruskal 1958, Ordinal measures of association, section 6). Lengths are
    whole and cut at their bounds, so ties take a little away from it.
    """

    prompt: Length
    answer: Length
    correlation: float = 0.0

    def draw(self, rng: Generator) -> tuple[int, int]:
        """Tokens of a prompt and of its answer."""
        if not self.correlation:
            return sample(self.prompt, rng), sample(self.answer, rng)
        r = 2 * math.sin(math.pi / 6 * self.correlation)
        first, other = rng.standard_normal(2).tolist()
        return at_normal(self.prompt, first), at_normal(self.answer, r * first + math.sqrt(1 - r * r) * other)

    @property
    def longest(self) -> tuple[int, int]:
        """The pair of the most tokens in all."""
        return self.prompt.high, self.answer.high

    @property
    def shortest_prompt(self) -> int:
        """The least tokens that a prompt has."""
        return self.prompt.low


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedPairs:
    """Pairs seen in practice, drawn with replacement, so that their correlation is kept."""

    pairs: tuple[tuple[int, int], ...]

    def draw(self, rng: Generator) -> tuple[int, int]:
        """Tokens of a prompt and of its answer."""
        return self.pairs[int(rng.integers(len(self.pairs)))]

    @property
    def longest(self) -> tuple[int, int]:
        """The pair of the most tokens in all."""
        return max(self.pairs, key=sum)

    @property
    def shortest_prompt(self) -> int:
        """The least tokens that a prompt has."""
        return min(prompt for prompt, _ in self.pairs)
