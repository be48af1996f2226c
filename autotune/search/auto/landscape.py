"""What the prior says of the space: a pool of candidates it was asked about, good ones among them, and which parameters
it says matter."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.records.spec import Args
from autotune.search.auto.candidates import Candidates, Option, unique
from autotune.search.auto.figures import excess_score
from autotune.search.auto.history import Observation
from autotune.search.auto.launchable import MemoryDoubt
from autotune.search.auto.prior import Prediction, Prior

Floats = NDArray[np.float64]

FIRST_LOOKS, AGAIN = 1, 40
"""Versions with a long look at the space; a later one of so many draws, since constants that were refitted move the
best places less than they move the values there."""
CLIMBS, SWEEPS = 3, 1  # starts of a climb, by different structures; times that each parameter is tried
CLIMB_AT_LEAST = 0.002  # of ln(objective): less is not worth a step
EXCESS_PRICE = 3.0  # of a score of excess, in ln(objective)
SENSITIVE = 1.0  # of ln: changes beyond count no more
HOPELESS = -50.0


@dataclass(slots=True)
class Landscape:
    """Made anew when the prior's version changes: `refreshed`."""

    candidates: Candidates
    prior: Prior | None
    seed: int
    maximise: bool
    pool: list[Option] = field(default_factory=list)
    scales: Floats = field(default_factory=lambda: np.empty(0))
    _version: int = -1
    _told: dict[object, Prediction | None] = field(default_factory=dict)
    _moved: list[tuple[int, float]] = field(default_factory=list)

    def predict(self, option: Option) -> Prediction | None:
        """Return what the prior says of a candidate."""
        if self.prior is None:
            return None
        return self._told_of(self.prior, option.args)

    def _told_of(self, prior: Prior, args: Args) -> Prediction | None:
        """A candidate that is launched has been asked about before: it is simulated once a version."""
        key = repr(sorted(args.items()))  # True is not 1, and a list is not hashable
        if key not in self._told:
            self._told[key] = prior.predict(args)
        return self._told[key]

    def refreshed(self) -> Landscape:
        """Look at the space again if the prior has changed its mind."""
        version = 0 if self.prior is None else self.prior.version
        if version != self._version:
            self._version, self._told, self._moved = version, {}, []
            rng = random.Random(f"{self.seed} pool")  # noqa: S311 - the same draw for every version
            drawn = self.candidates.drawn(rng)
            if self.prior is not None and version > FIRST_LOOKS:
                drawn = drawn[:AGAIN]
            self.pool = unique([*drawn, *self._climbed(drawn, rng)]) if self.prior is not None else drawn
            self.scales = self._sensitive_scales()
        return self

    def predicted(self, observation: Observation) -> Prediction | None:
        """Return what the prior says of a trial by what was launched, or of its parameters."""
        if observation.args is None:
            rng = random.Random(f"{self.seed} {observation.number}")  # noqa: S311 - nothing secret
            option = self.candidates.legal(observation.params, rng)
            return None if option is None else self.predict(option)
        if self.prior is None:
            return None
        if observation.number not in self._told:
            self._told[observation.number] = self._told_of(self.prior, observation.args)
        return self._told[observation.number]

    # --- climbing -----------------------------------------------------------------------------------------------------

    def _climbed(self, drawn: Sequence[Option], rng: random.Random) -> list[Option]:
        ranked = sorted(drawn, key=self._utility, reverse=True)
        met: list[Option] = []
        for start in self._starts(ranked):
            met += self._climb(start, rng)
        return met

    def _starts(self, ranked: Sequence[Option]) -> list[Option]:
        """The best candidates of different structures."""
        structural = self.candidates.encoding.structural
        found: dict[bytes, Option] = {}
        for option in ranked:
            row = self.candidates.encoding.features([option.params])[0][structural]
            found.setdefault(row.tobytes(), option)
            if len(found) == CLIMBS:
                break
        return list(found.values())

    def _climb(self, start: Option, rng: random.Random) -> list[Option]:
        """Try every value of every parameter, going on from whatever is better; return all that was tried."""
        here, height, met = start, self._utility(start), [start]
        for sweep in range(SWEEPS):
            begun = height
            for index in range(len(self.candidates.encoding.axes)):
                tried = self.candidates.moved(here.params, index, rng)
                heights = [self._utility(option) for option in tried]
                met += tried
                if sweep == 0:
                    self._moved += [(index, min(abs(value - height), SENSITIVE)) for value in heights]
                if tried and max(heights) > height + CLIMB_AT_LEAST:
                    here, height = tried[heights.index(max(heights))], max(heights)
            if height <= begun + CLIMB_AT_LEAST:
                break
        return met

    def _utility(self, option: Option) -> float:
        """The predicted ln(objective), less what a miss of an SLO or of the memory is worth."""
        told = self.predict(option)
        if told is None or told.objective is None or told.objective <= 0:
            return HOPELESS
        height = math.log(told.objective) * (1 if self.maximise else -1)
        height -= EXCESS_PRICE * sum(max(0.0, excess_score(x)) for x in told.excess.values())
        if told.margins is not None:
            height += math.log(max(float(MemoryDoubt.before().holds([told.margins])[0]), 1e-6))
        return height

    def _sensitive_scales(self) -> Floats:
        """Length-scales: long for parameters that the prior says do little, but never so long as to be lost."""
        encoding = self.candidates.encoding
        if not self._moved:
            return encoding.scales
        sums, counts = np.zeros(len(encoding.axes)), np.zeros(len(encoding.axes))
        for index, change in self._moved:
            sums[index] += change
            counts[index] += 1
        relevance = sums / np.maximum(counts, 1)
        most = float(relevance.max())
        shares = relevance / most if most > 0 else np.ones(len(relevance))
        shares = np.where(counts > 0, shares, 1.0)
        scales: Floats = encoding.scales / np.clip(shares, encoding.floors, 1.0)
        return scales
