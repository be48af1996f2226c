"""Whether an engine will hold a candidate: what the memory model leaves unsure, and crashes it does not explain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.auto.gaussian import distances, normal_cdf

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

CACHE_ERRORS, OUTSIDE_ERRORS = np.linspace(-0.10, 0.20, 31), np.linspace(-0.03, 0.06, 31)
"""By how much of the GPU's memory the two margins may be overestimated."""
CACHE_PRIOR, OUTSIDE_PRIOR = (0.02, 0.05), (0.004, 0.012)  # mean and deviation
CACHE_BLUR, OUTSIDE_BLUR = 0.012, 0.003
"""By how much the memory of equal launches differs: the step from holding to not holding is as wide."""
LEAST = 1e-4

REACH = 0.5  # in the unit cube: how far a crash that nothing explains warns
DOUBT = 0.6  # weight of not knowing, beside one crash at the very place
BASE_RATE = 0.05
SUSPICION = 2.0  # three crashes with nothing but a switch's value in common leave it a chance of 1 in 16


@dataclass(slots=True)
class MemoryDoubt:
    """A posterior over how wrong both margins are."""

    log_weights: Floats

    @classmethod
    def before(cls) -> MemoryDoubt:
        """What is believed before a launch."""
        parts = [
            -0.5 * ((errors - mean) / sd) ** 2
            for errors, (mean, sd) in ((CACHE_ERRORS, CACHE_PRIOR), (OUTSIDE_ERRORS, OUTSIDE_PRIOR))
        ]
        return cls(parts[0][:, None] + parts[1][None, :])

    def learn(self, margins: Sequence[tuple[float, float]], held: Sequence[bool]) -> None:
        """Take note of launches, each of which held or ran out of memory."""
        if not margins:
            return
        cache, outside = self._each(margins)
        holds = cache[:, :, None] * outside[:, None, :]
        seen = np.where(np.array(held)[:, None, None], holds, 1 - holds)
        self.log_weights = self.log_weights + np.log(np.clip(seen, LEAST, 1)).sum(0)

    def holds(self, margins: Sequence[tuple[float, float]]) -> Floats:
        """Return the probability that each will hold."""
        weights = np.exp(self.log_weights - self.log_weights.max())
        weights /= weights.sum()
        cache, outside = self._each(margins)
        found: Floats = ((cache @ weights) * outside).sum(1)
        return found

    @staticmethod
    def _each(margins: Sequence[tuple[float, float]]) -> tuple[Floats, Floats]:
        """The chance that each margin is enough, a row a launch and a column an error."""
        different, which = np.unique(np.array(margins).reshape(-1, 2), axis=0, return_inverse=True)
        cache, outside = different.T[:, :, None]
        cache_holds = normal_cdf((cache - CACHE_ERRORS) / CACHE_BLUR)
        outside_holds = normal_cdf((outside - OUTSIDE_ERRORS) / OUTSIDE_BLUR)
        return cache_holds[which.ravel()], outside_holds[which.ravel()]


def survives(places: Floats, tried: Floats, crashed: Floats) -> Floats:
    """Return the probability of no crash at `places`, from launches at `tried`. `crashed`: of each 0 where it held,
    else how much of the crash is unexplained (1: all of it)."""
    if not len(tried):
        return np.full(len(places), 1 - BASE_RATE)
    near = np.exp(-((distances(places, tried, np.array(REACH))) ** 2))
    ill = near @ crashed + DOUBT * BASE_RATE
    all_of_them = near.sum(1) + DOUBT
    found: Floats = 1 - ill / all_of_them
    return found


def untried_or_held(places: Floats, tried: Floats, crashed: Floats, switches: Bools) -> Floats:
    """Return the probability that no switch of each place is set to what never runs here: a value with which every
    launch crashed, as a kernel or format does that a GPU lacks. One success acquits it."""
    chance = np.ones(len(places))
    for axis in np.flatnonzero(switches):
        for value in np.unique(tried[:, axis]) if len(tried) else ():
            here = tried[:, axis] == value
            if crashed[here].min() > 0:
                believed = (1 + crashed[here].sum()) ** -SUSPICION
                chance = np.where(places[:, axis] == value, np.minimum(chance, believed), chance)
    return chance
