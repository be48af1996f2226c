"""Whether two runs differ in a metric by more than noise."""

from __future__ import annotations

import math

from autotune.compare.record import Difference
from autotune.compare.unlike import Read
from autotune.measure import noise
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Direction
from autotune.records.trial import Estimate, TrialRecord
from autotune.trial.launches import figures_of, launches_of

ASSUMED_LAUNCH_SD = 0.03
"""Standard deviation of a figure's logarithm between launches of one configuration, where none was launched twice: an
assumption, and said to be one."""


def better_when(metric: str) -> Direction:
    """Return which way a metric is better: rates high, all else low."""
    parsed = parse_metric(metric)
    return Direction.MAXIMIZE if parsed is not None and parsed.kind is MetricKind.RATE else Direction.MINIMIZE


def difference(metric: str, a: tuple[Read, TrialRecord], b: tuple[Read, TrialRecord]) -> Difference | None:
    """Return what separates two runs' configurations in a metric; None where one has no figure above 0.

    By launches where any configuration was launched twice; else the intervals inside the launches, widened by what
    launches are assumed to differ by.
    """
    figures = [figures_of(launches_of(run.trials, trial), metric, run.spec.price) for run, trial in (a, b)]
    if not all(figures) or any(figure.value <= 0 for launch in figures for figure in launch):
        return None
    confidence, direction = a[0].spec.objective.confidence, better_when(metric)
    found = noise.compare(*([[f] for f in launch] for launch in figures), direction=direction, confidence=confidence)
    names = a[0].name, b[0].name
    if found.freedom:
        winner = {noise.A: names[0], noise.B: names[1]}.get(found.winner)
        return Difference(
            metric=metric, first=names[0], second=names[1], ratio=found.ratio, winner=winner, freedom=found.freedom
        )
    ratio = _assumed(figures[0][0], figures[1][0])
    return Difference(
        metric=metric, first=names[0], second=names[1], ratio=ratio, winner=_winner(ratio, direction, names), freedom=0
    )


def _assumed(one: Estimate, other: Estimate) -> Estimate:
    """The ratio; its interval adds the spread of each figure and that of the launches in quadrature, on logarithms."""
    value = math.log(one.value / other.value)
    launches = 2 * ASSUMED_LAUNCH_SD * math.sqrt(2)
    below, above = (
        (_spread(one.low, one.value), _spread(other.value, other.high)),
        (
            _spread(one.value, one.high),
            _spread(other.low, other.value),
        ),
    )
    low, high = (None if None in side else math.hypot(launches, *(s or 0.0 for s in side)) for side in (below, above))
    return Estimate(
        value=math.exp(value),
        low=None if low is None else math.exp(value - low),
        high=None if high is None else math.exp(value + high),
        n=2,
    )


def _spread(low: float | None, high: float | None) -> float | None:
    return None if low is None or high is None or low <= 0 else math.log(high / low)


def _winner(ratio: Estimate, direction: Direction, names: tuple[str, str]) -> str | None:
    above = ratio.low is not None and ratio.low > 1
    below = ratio.high is not None and ratio.high < 1
    if not (above or below):
        return None
    return names[0] if above is (direction is Direction.MAXIMIZE) else names[1]
