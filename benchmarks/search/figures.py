"""What runs come to: launches and engine-seconds to near the optimum with intervals, ratios to the best rival."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.search.protocol import Run, Step

Floats = NDArray[np.float64]

NEAR, VERY_NEAR = 0.95, 0.99  # of the optimum's true value
RESAMPLES, TAIL = 2_000, 5.0  # of the bootstrap; per cent outside on each side
RAN = frozenset({"ok", "slo_miss", "unsure"})


def launches_to(run: Run, share: float) -> float:
    """Launches until one's true value is at least `share` of the optimum; infinite where none came."""
    return next((float(n) for n, step in enumerate(run.steps, 1) if (step.quality or 0.0) >= share), math.inf)


def seconds_to(run: Run, share: float) -> float:
    """Seconds of the engine that those launches took."""
    launches = launches_to(run, share)
    return math.inf if math.isinf(launches) else sum(step.engine_s for step in run.steps[: int(launches)])


def final_quality(run: Run) -> float:
    """The true value, over the optimum's, of what measured best: what would be handed over."""
    return _handed_over(run.steps)


def regret(run: Run) -> list[float]:
    """After each launch, by how much what would be handed over falls short of the optimum."""
    return [1.0 - min(1.0, _handed_over(run.steps[: n + 1])) for n in range(len(run.steps))]


def _handed_over(steps: Sequence[Step]) -> float:
    best = max((step for step in steps if step.value is not None), key=lambda s: s.value or 0.0, default=None)
    return (best.quality or 0.0) if best is not None else 0.0


def crashed_ratio(runs: Sequence[Run]) -> float:
    """Share of launches that broke."""
    steps = [step for run in runs for step in run.steps]
    return sum(step.outcome not in RAN for step in steps) / max(1, len(steps))


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A median and its bootstrap interval of 90 %; infinite where most runs never came near."""

    median: float
    low: float
    high: float


def median_of(values: Sequence[float]) -> Interval:
    """Return the median over seeds."""
    drawn = _resampled(np.asarray(values))
    low, high = np.percentile(drawn, (TAIL, 100 - TAIL), method="nearest")
    return Interval(median=_median(np.asarray(values)), low=float(low), high=float(high))


def _median(values: Floats) -> float:
    """The upper one of two, so that infinity is never averaged away."""
    return float(np.sort(values)[len(values) // 2])


def _resampled(values: Floats) -> Floats:
    rng = np.random.default_rng(1)
    picked = rng.integers(len(values), size=(RESAMPLES, len(values)))
    return np.sort(values[picked], axis=1)[:, len(values) // 2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Ours over the best rival. `rival`: which. `bound`: the rival's is only known to be more than the budget, so the
    ratio is at most so much; `neither`: nor did ours, so nothing is known."""

    landscape: str
    rival: str
    value: float
    low: float
    high: float
    bound: bool = False
    neither: bool = False

    @property
    def lost(self) -> bool:
        """Whether the rival was as good or better."""
        return not self.neither and not self.value < 1.0


def ratio(landscape: str, ours: Sequence[float], rivals: Mapping[str, Sequence[float]], budget: float) -> Ratio:
    """Return the ratio of medians to the best of `rivals`; what was never reached counts as `budget`."""
    best = min(
        rivals, key=lambda name: (_capped(rivals[name], budget), float(np.mean(np.minimum(rivals[name], budget))))
    )
    mine, theirs = (np.minimum(np.asarray(values), budget) for values in (ours, rivals[best]))
    drawn = _resampled(mine) / np.random.default_rng(2).permutation(_resampled(theirs))
    low, high = np.percentile(drawn, (TAIL, 100 - TAIL))
    value = _median(mine) / _median(theirs)
    return Ratio(
        landscape=landscape,
        rival=best,
        value=value,
        low=float(low),
        high=float(high),
        bound=_median(theirs) >= budget,
        neither=_median(theirs) >= budget and _median(mine) >= budget,
    )


def _capped(values: Sequence[float], budget: float) -> float:
    return _median(np.minimum(np.asarray(values), budget))


def overall(ratios: Sequence[Ratio]) -> float:
    """The geometric mean over landscapes."""
    return math.exp(sum(math.log(r.value) for r in ratios) / len(ratios)) if ratios else math.nan
