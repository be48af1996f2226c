"""How much a figure differs between repeats and between launches of one configuration, and whether two configurations
differ by more.

Launches of the same configuration differ by more than repeats inside one launch do: memory is laid out anew, kernels
and graphs are chosen anew, clocks start from another temperature. One-way random effects on the figure's logarithm,

    ln y = mu + launch + repeat,    launch ~ (0, across^2), repeat ~ (0, within^2),

with the variances from the usual analysis of variance (Searle, Casella & McCulloch 1992, Variance Components, 3.6, for
launches with different numbers of repeats). What compares configurations is the launch: requests and repeats inside it
share its luck, so degrees of freedom count launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.measure.estimates import student_t
from autotune.records.spec import Direction
from autotune.records.trial import Estimate

Launches = Sequence[Sequence[Estimate]]
"""The figures of one metric: of each launch its repeats (levels)."""

TIE, A, B = "tie", "a", "b"

LEAST_FREEDOM = 4
"""Launches come in modes (a fast and a slow placement of threads): with two each, one configuration gets the fast and
the other the slow one in a pair of eight, and nothing in the figures tells. Three each, or a third one's, do."""

ERROR_SHARE = 2 / 3
"""Student's test is made with this share of the error allowed, since launches are not normal (docs/measurement.md)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseFloor:
    """Run-to-run noise of a metric, as standard deviations of its logarithm (0.03: about 3 %).

    `within` is that of repeats in a launch, None without repeats; `across` what launches differ by on top of it, None
    for a single launch; 0 where they differ by no more than their repeats. `mean_sd` is that of a launch's mean, both
    together, with `freedom` degrees of freedom (launches, less one): what a difference has to be measured against.
    """

    within: float | None
    across: float | None
    mean_sd: float | None
    freedom: int

    def tie_ratio(self, launches: int, confidence: float = 0.95) -> float | None:
        """Return the ratio > 1 up to which two configurations with so many launches each are a tie; None for a floor
        from a single launch, which can't tell."""
        if self.mean_sd is None:
            return None
        return math.exp(_critical(confidence, self.freedom) * self.mean_sd * math.sqrt(2 / launches))


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Which of two configurations is better: `winner` is `a`, `b` or `tie`; `ratio` is a over b with its interval.

    `freedom` is that of what is known of how launches differ. Below LEAST_FREEDOM it is a tie whatever the ratio; at 0
    no launch was repeated and the ratio has no interval.
    """

    winner: str
    ratio: Estimate
    freedom: int


def floor(launches: Launches) -> NoiseFloor:
    """Return the noise of one configuration launched one or more times. Raises ValueError for figures that have no
    logarithm, or none at all."""
    groups = _logs(launches)
    repeats = sum(map(len, groups)) - len(groups)
    within = sum(_squares(group) for group in groups) / repeats if repeats else None
    freedom = len(groups) - 1
    mean_sd = math.sqrt(_squares([fmean(group) for group in groups]) / freedom) if freedom else None
    return NoiseFloor(
        within=None if within is None else math.sqrt(within),
        across=math.sqrt(_across(groups, within or 0.0)) if freedom else None,
        mean_sd=mean_sd,
        freedom=freedom,
    )


def compare(
    a: Launches,
    b: Launches,
    *,
    direction: Direction = Direction.MAXIMIZE,
    confidence: float = 0.95,
    known: NoiseFloor | None = None,
) -> Comparison:
    """Return whether a or b is better by more than launches differ by: Student's test on the launches' mean logarithms,
    their variance pooled over both and `known`, the floor of a third configuration of the same engine and machine.

    Raises ValueError as `floor`.
    """
    floors = [floor(a), floor(b), *([] if known is None else [known])]
    freedom = sum(found.freedom for found in floors)
    logs = [[fmean(group) for group in _logs(launches)] for launches in (a, b)]
    difference = fmean(logs[0]) - fmean(logs[1])
    n = sum(map(len, logs))
    if not freedom:
        return Comparison(winner=TIE, ratio=Estimate(value=math.exp(difference), low=None, high=None, n=n), freedom=0)
    variance = sum(found.freedom * found.mean_sd**2 for found in floors if found.mean_sd is not None) / freedom
    half = _critical(confidence, freedom) * math.sqrt(variance * sum(1 / len(means) for means in logs))
    ratio = Estimate(value=math.exp(difference), low=math.exp(difference - half), high=math.exp(difference + half), n=n)
    if abs(difference) <= half or freedom < LEAST_FREEDOM:
        return Comparison(winner=TIE, ratio=ratio, freedom=freedom)
    winner = A if (difference > 0) is (direction is Direction.MAXIMIZE) else B
    return Comparison(winner=winner, ratio=ratio, freedom=freedom)


def _logs(launches: Launches) -> list[list[float]]:
    values = [[estimate.value for estimate in launch] for launch in launches if launch]
    if not values or any(value <= 0 or not math.isfinite(value) for launch in values for value in launch):
        raise ValueError(f"noise is estimated from one launch or more with figures above 0, not from {values}")
    return [[math.log(value) for value in launch] for launch in values]


def _critical(confidence: float, freedom: int) -> float:
    return student_t(1 - ERROR_SHARE * (1 - confidence), freedom)


def _across(groups: Sequence[Sequence[float]], within: float) -> float:
    """The variance of launches, at least 0: what their means differ by beyond what the repeats explain."""
    n = sum(map(len, groups))
    grand = sum(map(sum, groups)) / n
    between = sum(len(group) * (fmean(group) - grand) ** 2 for group in groups) / (len(groups) - 1)
    size = (n - sum(len(group) ** 2 for group in groups) / n) / (len(groups) - 1)  # the launches' typical repeats
    return max(0.0, (between - within) / size)


def _squares(values: Sequence[float]) -> float:
    mean = fmean(values)
    return sum((value - mean) ** 2 for value in values)
