"""Point estimates with intervals for series whose neighbours are alike.

Queueing makes consecutive requests resemble each other, so every interval here rests on a long-run variance: the
variance that the mean of a *dependent* series has, times n. It is estimated by equally weighted cosine projections
(EWC; Lazarus, Lewis, Stock & Watson 2018, "HAR Inference: Recommendations for Practice", JBES 36(4)): the mean of the
squares of the series' first COSINES low-frequency cosine transforms, with exact Student-t critical values. Coverage by
simulation: docs/measurement.md.
"""

from __future__ import annotations

import math
from functools import cache
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from autotune.records.trial import Estimate

Series = NDArray[np.float64]

COSINES = 12
"""Fewer costs width (t instead of normal quantiles: +11 %), more misses slow drifts. 12 covers at 93 % or better up to
an inflation of about n/40 (docs/measurement.md)."""

_BLOCKS = 4096
"""Longer series are averaged down to this many blocks first: only low frequencies are looked at."""


def mean(values: Series, confidence: float) -> Estimate | None:
    """Return the mean of a series in order of time with its interval; none for one value, None for an empty series."""
    n = len(values)
    if n == 0:
        return None
    value = float(values.mean())
    if n == 1:
        return Estimate(value=value, low=None, high=None, n=1)
    half = half_width(values, confidence)
    return Estimate(value=value, low=value - half, high=value + half, n=n)


def half_width(values: Series, confidence: float) -> float:
    """Return half the width of the two-sided interval of the mean of two values or more, in order of time."""
    return student_t(confidence, _cosines(len(values))) * math.sqrt(_variance_of_mean(values))


def quantile(values: Series, q: float, confidence: float) -> Estimate | None:
    """Return the q-quantile of a series in order of time: the smallest value that a share q doesn't exceed.

    That is definition 1 of Hyndman & Fan (1996), a latency that really occurred. The interval is the distribution-free
    one from order statistics (David & Nagaraja 2003, 7.1) for n / D effective samples, D being the inflation of the
    indicator "exceeds the quantile", widened for its own uncertainty and floored at 1. A side that the effective
    samples can't bound is None.
    """
    n = len(values)
    if n == 0:
        return None
    ordered = np.sort(values)
    value = float(ordered[min(n - 1, math.ceil(n * q - 1e-9) - 1)])
    effective = int(n / _cautious_inflation(values > value, confidence))
    low, high = bounding_ranks(effective, q, (1 - confidence) / 2)
    return Estimate(
        value=value,
        low=None if low is None else float(ordered[max(0, math.floor(low * n / effective) - 1)]),
        high=None if high is None else float(ordered[min(n, math.ceil(high * n / effective)) - 1]),
        n=n,
    )


def ratio(events: NDArray[np.bool_], confidence: float) -> Estimate | None:
    """Return the share of true events in order of time, with Wilson's score interval (1927) for n / D samples."""
    n = len(events)
    if n == 0:
        return None
    share, effective = float(events.mean()), n / _cautious_inflation(events, confidence)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = share + z * z / (2 * effective)
    half = z * math.sqrt(share * (1 - share) / effective + (z / (2 * effective)) ** 2)
    scale = 1 + z * z / effective
    low, high = (centre - half) / scale, (centre + half) / scale
    return Estimate(value=share, low=min(max(low, 0.0), share), high=max(min(high, 1.0), share), n=n)


def inflation(events: NDArray[np.bool_]) -> float:
    """Return D >= 1: the variance of the number of events over n p (1 - p), that of independent ones."""
    return max(1.0, _raw_inflation(events))


def bounding_ranks(n: int, q: float, tail: float) -> tuple[int | None, int | None]:
    """Return the ranks l, u (from 1) in n independent samples with P(quantile < x_l) and P(quantile > x_u) <= tail.

    None for a side on which even the extreme sample errs more often than that: u exists from n >= ln(tail) / ln(q) on.
    """
    below = _binomial_cdf(n, q)  # below[k] = P(at most k samples lie under the quantile)
    low = int(np.searchsorted(below, tail, side="right"))  # the largest l with P(B <= l - 1) <= tail
    high = int(np.searchsorted(below, 1 - tail - 1e-12)) + 1  # the smallest u with P(B >= u) <= tail
    return low or None, high if high <= n else None


@cache
def student_t(confidence: float, freedom: int) -> float:
    """Return t with P(|T| <= t) = confidence, for whole degrees of freedom: Abramowitz & Stegun 26.7.3-4, bisected."""
    low, high = 0.0, math.pi / 2
    for _ in range(60):  # halves the angle to the last bit
        angle = (low + high) / 2
        low, high = (angle, high) if _central_probability(angle, freedom) < confidence else (low, angle)
    return math.tan(low) * math.sqrt(freedom)


def _central_probability(angle: float, freedom: int) -> float:
    """P(|T| <= sqrt(freedom) tan(angle))."""
    odd = freedom % 2
    term = math.cos(angle) if odd else 1.0
    total = term if freedom > 1 else 0.0
    for k in range(3 if odd else 2, freedom - 1, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    return 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total


def _cosines(n: int) -> int:
    return max(1, min(COSINES, n // 5))


def _variance_of_mean(values: Series) -> float:
    """EWC estimate of the variance of the mean; at least one cosine, so n >= 2."""
    count = _cosines(len(values))
    size = -(-len(values) // _BLOCKS)
    blocks = values[: len(values) // size * size].reshape(-1, size).mean(axis=1)
    if blocks.min() == blocks.max():
        return 0.0
    phase = np.pi * (np.arange(len(blocks)) + 0.5) / len(blocks)
    waves = np.cos(np.outer(np.arange(1, count + 1), phase))
    return float(2 * np.square(waves @ (blocks - blocks.mean())).mean() / len(blocks) ** 2)


def _cautious_inflation(events: NDArray[np.bool_], confidence: float) -> float:
    """The inflation, raised by (t / z)^2 since it is itself estimated from a few cosines."""
    n = len(events)
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    caution = (student_t(confidence, _cosines(n)) / z) ** 2
    return min(float(n), max(1.0, _raw_inflation(events) * caution))


def _raw_inflation(events: NDArray[np.bool_]) -> float:
    """Unfloored; 0 where there is nothing to estimate it from."""
    n, share = len(events), float(events.mean()) if len(events) else 0.0
    if n < 2 or share in {0.0, 1.0}:
        return 0.0
    return _variance_of_mean(events.astype(np.float64)) * n / (share * (1 - share))


def _binomial_cdf(n: int, q: float) -> Series:
    """P(B <= k) for k = 0..n, B binomial(n, q)."""
    k = np.arange(1, n + 1)
    log_terms = np.concatenate(([0.0], np.cumsum(np.log((n - k + 1) / k)))) + np.arange(n + 1) * math.log(q / (1 - q))
    terms = np.exp(log_terms - log_terms.max())
    cumulative: Series = np.cumsum(terms) / terms.sum()
    return cumulative
