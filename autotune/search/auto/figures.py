"""Figures on the scales that beliefs are about: ln(objective), larger being better, and how far SLOs are exceeded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.auto.history import Observation
from autotune.search.auto.prior import Prediction

Floats = NDArray[np.float64]

FLOOR_RATIO = 0.05
"""Of the best value, added before the logarithm: how bad a bad candidate is exactly is not worth knowing."""
NO_FLOOR = 1e-9  # before anything was measured
LINEAR_SPREAD = 0.3  # what a standard deviation counts as where values have no logarithm
EXCESS_SCALE, EXCESS_LIMIT = 0.5, 1.5
"""ln(latency) varies about twice as much as ln(throughput), and misses beyond e^3 times the limit are all alike."""
BEST_EXCESS = -0.999_999


def excess_score(excess: float) -> float:
    """Return 0 at the limit, above where it is exceeded; symmetric in x and -x, and flat far from the limit."""
    score = EXCESS_SCALE * math.copysign(math.log1p(abs(excess)), excess)
    return min(score, EXCESS_LIMIT)


def told_excess(constraint: float) -> float:
    """Return the relative excess x that a constraint x / (1 + |x|) stands for."""
    return constraint / max(1 - abs(constraint), 1 + BEST_EXCESS)


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveScale:
    """ln(value + floor), its sign such that more is better; or, for values at or below 0, in standard deviations.

    `unit`: what a prediction is multiplied by to be on the measured scale.
    """

    sign: float
    floor: float = 0.0
    unit: float = 1.0
    linear: tuple[float, float] | None = None

    def score(self, value: float) -> float:
        """Return the score of a measured value."""
        if self.linear is not None:
            mean, deviation = self.linear
            return self.sign * LINEAR_SPREAD * (value - mean) / deviation
        return self.sign * math.log(max(value, 0.0) + self.floor)

    def predicted(self, prediction: Prediction | None) -> float:
        """Return the score of a predicted value, NaN where there is none."""
        if prediction is None or prediction.objective is None or self.linear is not None:
            return math.nan
        return self.score(self.unit * prediction.objective)


def scale_of(
    measured: Sequence[Observation], predictions: Sequence[Prediction | None], *, maximise: bool
) -> ObjectiveScale:
    """Return the scale on which values and predictions of a study are compared."""
    sign = 1.0 if maximise else -1.0
    values = [o.value for o in measured if o.value is not None]
    positive = [v for v in values if v > 0]
    if not values:
        return ObjectiveScale(sign=sign, floor=NO_FLOOR)
    if min(values) < 0 or not positive:
        return ObjectiveScale(sign=sign, linear=(float(np.mean(values)), float(np.std(values)) or 1.0))
    best = max(positive) if maximise else min(positive)
    ratios = [
        o.value / p.objective
        for o, p in zip(measured, predictions, strict=True)
        if o.value and p is not None and p.objective
    ]
    unit = math.exp(float(np.median(np.log(ratios)))) if ratios else 1.0
    return ObjectiveScale(sign=sign, floor=FLOOR_RATIO * best, unit=unit)
