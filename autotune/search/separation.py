"""Whether configurations that were launched in the same rounds differ: figures by round in, intervals out.

The unit is the launch: requests inside one say nothing of how launches of one configuration differ. Logarithms of the
figures are taken to be configuration + round + noise, one spread of the noise for all (a two-way layout), so that what
a round has in common (its traffic, a warming machine) cancels. A handful of launches hardly tells a spread, so it is
pooled over the configurations and starts from a prior worth PRIOR_FREEDOM degrees of freedom at LAUNCH_SD.

It may be looked at after every round: the error rate is shared out over the planned looks and over the finalists
(Bonferroni), so with probability 1 - error no interval against the reference, at any look, misses its truth, whichever
finalist wins and whenever one stops; the same holds for those against the best. How often that is so: docs/finals.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from autotune.measure.estimates import student_t
from autotune.records.trial import Estimate

LAUNCH_SD = 0.02
"""Of a figure's logarithm, between launches of one configuration: what is assumed before there are launches to tell."""

PRIOR_FREEDOM = 2
FIRST_LOOK = 2  # rounds: one has no spread

FAR = 10.0  # of a logarithm: an interval as wide as that is none

Round = Mapping[int, float]
"""The figure of each configuration that was launched in a round, above 0."""


@dataclass(frozen=True)
class Look:
    """What `rounds` say after the last of them, when at most `most` are run and the intervals of `pairs` of
    configurations are to hold together with probability 1 - `error`."""

    rounds: tuple[Round, ...]
    most: int
    pairs: int
    error: float
    sequential: bool = True

    @cached_property
    def spread(self) -> tuple[float, int]:
        """Standard deviation of a launch's logarithm, and the degrees of freedom behind it, the prior's included."""
        squares, freedom = residual(self.rounds)
        total = PRIOR_FREEDOM + freedom
        return math.sqrt((PRIOR_FREEDOM * LAUNCH_SD**2 + squares) / total), total

    def ratio(self, one: int, other: int) -> Estimate | None:
        """Return figure of `one` over that of `other` with its simultaneous interval; None where no round has both."""
        both = [math.log(r[one] / r[other]) for r in self.rounds if one in r and other in r]
        if not both:
            return None
        centre, half = sum(both) / len(both), self._half(len(both), len(self.rounds)) * math.sqrt(2)
        return _exp(centre, half, len(both))

    def level(self, one: int) -> Estimate:
        """Return the figure of `one` (geometric mean) with an interval for what launches scatter."""
        found = [math.log(r[one]) for r in self.rounds if one in r]
        return _exp(sum(found) / len(found), self._half(len(found), len(self.rounds)), len(found))

    def hopeless(self, one: int, other: int) -> bool:
        """Whether two would stay unseparated to the last round, were their difference one standard error larger than
        it looks: further launches are in vain."""
        both = [math.log(r[one] / r[other]) for r in self.rounds if one in r and other in r]
        if len(both) < FIRST_LOOK:
            return False
        error = self.spread[0] * math.sqrt(2 / len(both))
        left = self.most - len(self.rounds)
        last = self._half(len(both) + left, self.most) * math.sqrt(2)
        return abs(sum(both) / len(both)) + error < last

    def _half(self, launches: int, look: int) -> float:
        """Half the interval of a mean of so many launches, at that look."""
        sd, freedom = self.spread
        share = share_of_error(look, self.most) if self.sequential else 1.0
        if not share:
            return math.inf
        return student_t(1 - self.error * share / self.pairs, freedom) * sd / math.sqrt(launches)


def share_of_error(look: int, most: int) -> float:
    """Return the share of the error rate that the look after so many rounds may spend: more the later, 1 over all."""
    weights = [r - FIRST_LOOK + 1 for r in range(FIRST_LOOK, most + 1)]
    return max(0, look - FIRST_LOOK + 1) / sum(weights) if weights else 1.0


def residual(rounds: Sequence[Round]) -> tuple[float, int]:
    """Return the sum of squares that configuration and round leave of the logarithms, and its degrees of freedom."""
    cells = [(index, arm, math.log(value)) for index, one in enumerate(rounds) for arm, value in one.items()]
    arms = sorted({arm for _, arm, _ in cells})
    if not cells:
        return 0.0, 0
    design = np.zeros((len(cells), len(rounds) + len(arms)))
    for row, (index, arm, _) in enumerate(cells):
        design[row, index] = design[row, len(rounds) + arms.index(arm)] = 1.0
    logs = np.array([value for _, _, value in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, logs, rcond=None)
    return float(np.square(logs - design @ fitted).sum()), len(cells) - int(rank)


def _exp(centre: float, half: float, n: int) -> Estimate:
    if half > FAR:
        return Estimate(value=math.exp(centre), low=None, high=None, n=n)
    return Estimate(value=math.exp(centre), low=math.exp(centre - half), high=math.exp(centre + half), n=n)
