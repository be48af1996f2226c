"""The share of violations against the load, p = p* (load / capacity)^e: capacity from levels alone, without a twin.

Quasi-likelihood: violations come in bursts, so counts are divided by their inflation. The exponent's prior is what
simulated LLM engines show, 9 to 19 (2 with heavy-tailed service, 35 with fixed lengths).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp, log

import numpy as np

EXPONENTS = tuple(np.exp(np.linspace(log(3.0), log(40.0), 60)).tolist())
USUAL, SPREAD = 12.0, 0.5  # median and standard deviation of ln(exponent)
SPAN = log(6.0)  # the capacity may lie beyond the levels by this much
POINTS = 2000
HIGHEST_SHARE = 0.9


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """Violations of one SLO at one load; `allowed` is the share that it allows."""

    load: float
    judged: int
    violated: int
    inflation: float
    allowed: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Guess:
    """Where something else than these levels puts the capacity; `sd` of its ln."""

    load: float
    sd: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Crossing:
    """Where the share crosses what is allowed: median and central interval, and the exponent that fits best."""

    load: float
    low: float
    high: float
    exponent: float


def crossing(points: Sequence[Point], confidence: float = 0.9, guess: Guess | None = None) -> Crossing:
    """Return where the violations of one SLO at several loads cross the allowed share; `guess` is a normal prior."""
    loads = np.log([p.load for p in points] + ([guess.load] if guess else []))
    at = np.linspace(loads.min() - SPAN, loads.max() + SPAN, POINTS)
    density = np.array([_log_likelihood(points, at, e) - (log(e / USUAL) / SPREAD) ** 2 / 2 for e in EXPONENTS])
    if guess is not None:
        density -= ((at - log(guess.load)) / guess.sd) ** 2 / 2
    weight = np.exp(density - density.max())
    below = np.cumsum(weight.sum(axis=0))
    tail = (1 - confidence) / 2
    low, middle, high = np.interp([tail, 0.5, 1 - tail], below / below[-1], at)
    exponent = EXPONENTS[int(np.argmax(weight.sum(axis=1)))]
    return Crossing(load=exp(middle), low=exp(low), high=exp(high), exponent=exponent)


def evidence_against(points: Sequence[Point], load: float) -> float:
    """By how much the log-likelihood is less if one SLO is crossed at `load` than where the points have it most likely,
    both with the exponent that suits them best."""
    at = np.log([*np.exp(np.linspace(*_reach(points), POINTS)), load])
    best = np.max([_log_likelihood(points, at, exponent) for exponent in EXPONENTS], axis=0)
    return float(best.max() - best[-1])


def _reach(points: Sequence[Point]) -> tuple[float, float]:
    loads = [log(p.load) for p in points]
    return min(loads) - SPAN, max(loads) + SPAN


def _log_likelihood(points: Sequence[Point], at: np.ndarray, exponent: float) -> np.ndarray:
    total = np.zeros(len(at))
    for p in points:
        share = np.clip(p.allowed * np.exp(exponent * (log(p.load) - at)), 1e-9, HIGHEST_SHARE)
        total += (p.violated * np.log(share) + (p.judged - p.violated) * np.log1p(-share)) / p.inflation
    return total
