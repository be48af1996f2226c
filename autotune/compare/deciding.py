"""Whether two runs differ in a metric by more than noise."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, stdev

from autotune.compare.record import Difference
from autotune.compare.unlike import Read
from autotune.measure import noise
from autotune.measure.estimates import student_t
from autotune.records.finals import FinalStage
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Direction
from autotune.records.trial import Estimate, TrialRecord
from autotune.trial.figures import figure_of

FAR = 700.0  # of a logarithm: what a float still holds

ASSUMED_LAUNCH_SD = 0.03
"""Standard deviation of a figure's logarithm between launches of one configuration, where none was launched twice: an
assumption, and said to be one."""


def launches_of(run: Read, trial: TrialRecord) -> list[TrialRecord]:
    """Return the measured launches of a trial's configuration that say what it does: those of the finals where there
    were any, as what a search found best is the luckiest of many; a soak is of another load."""
    same = [t for t in run.trials if t.outcome.measured and t.fingerprint == trial.fingerprint]
    rounds = [t for t in same if t.final is not None and t.final.stage is FinalStage.ROUND]
    return rounds or [t for t in same if t.final is None]


def figure_over(launches: Sequence[TrialRecord], metric: str, run: Read) -> Estimate | None:
    """Return a configuration's figure: of one launch its own, of several their mean with an interval for what launches
    differ by (Student's t on logarithms; of figures that may be 0 the widest of their intervals)."""
    found = _figures(metric, run, launches)
    if len(found) < 2:
        return found[0] if found else None
    if any(figure.value <= 0 for figure in found):
        return _around(found)
    logs = [math.log(figure.value) for figure in found]
    half = student_t(run.spec.objective.confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    centre = fmean(logs)
    value, low, high = (math.exp(min(centre + step, FAR)) for step in (0.0, -half, half))
    return Estimate(value=value, low=low, high=high, n=len(logs))


def _around(found: Sequence[Estimate]) -> Estimate:
    lows, highs = [f.low for f in found if f.low is not None], [f.high for f in found if f.high is not None]
    low = min(lows) if len(lows) == len(found) else None
    high = max(highs) if len(highs) == len(found) else None
    return Estimate(value=fmean(f.value for f in found), low=low, high=high, n=len(found))


def better_when(metric: str) -> Direction:
    """Return which way a metric is better: rates high, all else low."""
    parsed = parse_metric(metric)
    return Direction.MAXIMIZE if parsed is not None and parsed.kind is MetricKind.RATE else Direction.MINIMIZE


def difference(metric: str, a: tuple[Read, TrialRecord], b: tuple[Read, TrialRecord]) -> Difference | None:
    """Return what separates two runs' configurations in a metric; None where one has no figure above 0.

    By launches where any configuration was launched twice; else the intervals inside the launches, widened by what
    launches are assumed to differ by.
    """
    figures = [_figures(metric, run, launches_of(run, trial)) for run, trial in (a, b)]
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


def _figures(metric: str, run: Read, trials: Sequence[TrialRecord]) -> list[Estimate]:
    return [found for trial in trials if (found := figure_of(trial, metric, run.spec.price)) is not None]


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
