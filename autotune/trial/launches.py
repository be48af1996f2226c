"""What a configuration does, over all of its launches that may speak for it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev

from autotune.measure.estimates import student_t
from autotune.records.finals import FinalStage
from autotune.records.spec import PriceSpec
from autotune.records.trial import Estimate, TrialRecord
from autotune.trial.figures import figure_of

FAR = 700.0  # of a logarithm: what a float still holds


def launches_of(trials: Iterable[TrialRecord], trial: TrialRecord) -> list[TrialRecord]:
    """Return the measured launches of a trial's configuration that say what it does: those of the finals where there
    were any, as what a search found best is the luckiest of many; a soak is of another load."""
    same = [t for t in trials if t.outcome.measured and t.fingerprint == trial.fingerprint]
    rounds = [t for t in same if t.final is not None and t.final.stage is FinalStage.ROUND]
    return rounds or [t for t in same if t.final is None]


def figure_over(
    launches: Sequence[TrialRecord], metric: str, *, price: PriceSpec | None, confidence: float
) -> Estimate | None:
    """Return a configuration's figure: of one launch its own, of several their mean with an interval for what launches
    differ by (Student's t on logarithms; of figures that may be 0 the widest of their intervals)."""
    found = figures_of(launches, metric, price)
    if len(found) < 2:
        return found[0] if found else None
    if any(figure.value <= 0 for figure in found):
        return _around(found)
    logs = [math.log(figure.value) for figure in found]
    half = student_t(confidence, len(logs) - 1) * stdev(logs) / math.sqrt(len(logs))
    centre = fmean(logs)
    value, low, high = (math.exp(min(centre + step, FAR)) for step in (0.0, -half, half))
    return Estimate(value=value, low=low, high=high, n=len(logs))


def figures_of(launches: Iterable[TrialRecord], metric: str, price: PriceSpec | None) -> list[Estimate]:
    """Return the figure of each launch that has one."""
    return [found for trial in launches if (found := figure_of(trial, metric, price)) is not None]


def _around(found: Sequence[Estimate]) -> Estimate:
    lows, highs = [f.low for f in found if f.low is not None], [f.high for f in found if f.high is not None]
    low = min(lows) if len(lows) == len(found) else None
    high = max(highs) if len(highs) == len(found) else None
    return Estimate(value=fmean(f.value for f in found), low=low, high=high, n=len(found))
