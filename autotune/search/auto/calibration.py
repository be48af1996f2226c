"""Refits the simulator's constants to launches: the levels that they measured, simulated again with other constants.

What is compared are the client's own figures, which every engine gives: the median time per output token, to the first
token, and the rate of tokens. A maximum a posteriori fit by Gauss and Newton, with a loss that lets no single figure
dominate: a level that was disturbed, or of which the simulator lacks something, must not bend the constants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records.trial import Measurement, TrialRecord
from autotune.search.auto.constants import CONSTANTS, DEVIATIONS
from autotune.search.auto.responses import Figures

Floats = NDArray[np.float64]

SIGNALS = {"tpot_ms.p50": 0.05, "output_tok_per_s": 0.05, "ttft_ms.p50": 0.2}
"""What is compared, and the standard deviation of its logarithm: noise, and what a right simulator still lacks. Times
to the first token hold the queue, so a load near saturation moves them by more than any constant."""
QUEUED_DEVIATION = 0.8  # of the time to the first token in a level that was stopped: its queue was still growing
ROBUST = 2.0  # deviations from which a residual counts by its size, not by its square
ITERATIONS, STEP, FARTHEST = 3, 0.08, 0.7
AT_MOST = 6  # launches that are fitted, spread evenly over those known: each costs a simulation a constant

Simulate = Callable[[TrialRecord, Measurement, Floats], Figures | None]
"""A record's level, simulated with constants changed by logarithmic factors."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """One measured level of one launch; `relevant`: which constants its times depend on."""

    record: TrialRecord
    measurement: Measurement
    relevant: NDArray[np.bool_]


def calibrated(levels: Sequence[Level], run: Simulate) -> Floats:
    """Return the logarithms of the factors, zeros where nothing was measured."""
    logs = np.zeros(len(CONSTANTS))
    chosen = _spread(levels)
    if not chosen:
        return logs
    active = np.any([level.relevant for level in chosen], axis=0)
    for _ in range(ITERATIONS):
        here = _residuals(chosen, run, logs)
        slopes = np.zeros((len(here), len(CONSTANTS)))
        for index in np.flatnonzero(active):
            moved = logs.copy()
            moved[index] += STEP
            slopes[:, index] = (_residuals(chosen, run, moved) - here) / STEP
        logs = logs + _step(here, slopes, logs)
    return logs


def _step(residuals: Floats, slopes: Floats, logs: Floats) -> Floats:
    """One step of Gauss and Newton with Huber's weights."""
    weights = np.minimum(1.0, ROBUST / np.maximum(np.abs(residuals), 1e-9))
    pull = slopes.T @ (weights * residuals) + logs / DEVIATIONS**2
    bend = slopes.T @ (weights[:, None] * slopes) + np.diag(1 / DEVIATIONS**2)
    step: Floats = np.clip(-np.linalg.solve(bend, pull), -FARTHEST, FARTHEST)
    return step


def _residuals(levels: Sequence[Level], run: Simulate, logs: Floats) -> Floats:
    return np.concatenate([_apart(level, run(level.record, level.measurement, logs)) for level in levels])


def _apart(level: Level, simulated: Figures | None) -> Floats:
    """Simulated over measured in standard deviations; what either lacks is no evidence."""
    apart = []
    for name, deviation in SIGNALS.items():
        seen = level.measurement.values.get(name)
        value = None if simulated is None else simulated.value(name)
        if seen is None or value is None or seen.value <= 0 or value <= 0:
            apart.append(0.0)
            continue
        queued = name.startswith("ttft") and level.measurement.stopped is not None
        apart.append(float(np.log(value / seen.value)) / (QUEUED_DEVIATION if queued else deviation))
    return np.array(apart)


def _spread(levels: Sequence[Level]) -> Sequence[Level]:
    if len(levels) <= AT_MOST:
        return levels
    return [levels[round(i * (len(levels) - 1) / (AT_MOST - 1))] for i in range(AT_MOST)]
