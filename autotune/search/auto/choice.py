"""Which candidate is worth a launch most: expected gain times the chance that it runs and holds its SLOs, a second."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from autotune.search.auto.averaging import Belief, Points, Shape, believe
from autotune.search.auto.candidates import Option
from autotune.search.auto.encoding import Encoding
from autotune.search.auto.figures import ObjectiveScale, excess_score, scale_of, told_excess
from autotune.search.auto.gaussian import distances
from autotune.search.auto.history import Observation
from autotune.search.auto.launchable import MemoryDoubt, survives, untried_or_held
from autotune.search.auto.prior import Prediction

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

MARGIN = 0.015  # of ln(objective): an improvement is only one beyond the noise left in the best posterior mean
NOISE_RATIO = 0.03  # launches of one configuration differ by so much
NEAR = 0.06  # scaled distance within which, predictions being equal too, two candidates are one
TWIN_PENALTY, TWINS = 0.02, 2
"""Each measured candidate of the same structure and the same prediction, beyond the second, takes so much of a gain."""
TINY = 1e-300
LAUNCH_S = 60.0  # what a launch costs before any was seen
CRASHES_OF = 250  # latest trials that say what crashes
SUBSET_BEST, SUBSET_LAST = 45, 35  # measured points that beliefs rest on: the best and the latest


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """Observations, what the prior says of each, and where each stands in the unit cube, a row an observation."""

    observations: tuple[Observation, ...]
    predictions: tuple[Prediction | None, ...]
    features: Floats

    def only(self, keep: Sequence[bool]) -> Measured:
        """Return those that are kept."""
        return Measured(
            observations=tuple(o for o, kept in zip(self.observations, keep, strict=True) if kept),
            predictions=tuple(p for p, kept in zip(self.predictions, keep, strict=True) if kept),
            features=self.features[np.array(keep, dtype=np.bool_)],
        )

    def last(self, count: int) -> Measured:
        """Return the latest."""
        return Measured(
            observations=self.observations[-count:],
            predictions=self.predictions[-count:],
            features=self.features[-count:],
        )

    def pairs(self) -> Iterator[tuple[Observation, Prediction | None]]:
        """Yield each observation with its prediction."""
        return zip(self.observations, self.predictions, strict=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Candidates to choose from, and what the prior says of each."""

    options: tuple[Option, ...]
    predictions: tuple[Prediction | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pick:
    """The candidate chosen. `gain`: by how much a launch of it would raise the best by expectation, as a ratio; None
    while no candidate holds every SLO. `chance`: that it runs and holds them. `settled`: all else is inside the noise
    of what was measured."""

    option: Option
    gain: float | None
    chance: float
    settled: bool = False


@dataclass(slots=True, kw_only=True)
class Chooser:
    """Everything that is known before a choice."""

    encoding: Encoding
    scales: Floats
    maximise: bool
    measured: Measured
    pending: Measured
    load_s: float = LAUNCH_S
    _scale: ObjectiveScale = field(init=False)

    def __post_init__(self) -> None:
        valued = self.measured.only([o.value is not None for o in self.measured.observations])
        self._scale = scale_of(valued.observations, valued.predictions, maximise=self.maximise)

    def pick(self, asked: Asked) -> Pick:
        """Return the best of `asked`, which must not be empty."""
        features = self.encoding.features([option.params for option in asked.options])
        runs = self._runs(features, asked.predictions)
        holds = self._holds(features, asked.predictions)
        gains = self._gains(features, asked.predictions)
        chance = runs * holds
        open_ = ~self._same(features, asked.predictions)
        worth = self._promise(asked.predictions, chance) if gains is None else np.log(np.maximum(gains * chance, TINY))
        worth -= np.log(self._cost(asked.predictions))
        worth -= self._twins(features, asked.predictions)
        best = int(np.argmax(np.where(open_, worth, -np.inf) if open_.any() else worth))
        gain = None if gains is None else float((gains * chance)[open_].max(initial=0.0))
        return Pick(option=asked.options[best], gain=gain, chance=float(chance[best]), settled=not open_.any())

    # --- what a launch is worth ---------------------------------------------------------------------------------------

    def _promise(self, predictions: Sequence[Prediction | None], chance: Floats) -> Floats:
        """While nothing holds every SLO: ln of the chance to, and of what the prior says that it would then give."""
        told = np.array([self._scale.predicted(p) for p in predictions])
        known = np.isfinite(told)
        usual = float(told[known].mean()) if known.any() else 0.0
        promised: Floats = np.log(np.maximum(chance, TINY)) + np.where(known, told, usual)
        return promised

    def _gains(self, features: Floats, predictions: Sequence[Prediction | None]) -> Floats | None:
        """Expected improvement of ln(objective) over the best posterior mean; None without a feasible candidate."""
        known = _subset(self.measured.only([o.value is not None for o in self.measured.observations]), self.maximise)
        feasible = np.array([o.feasible for o in known.observations], dtype=np.bool_)
        if not feasible.any():
            return None
        values = np.array([[self._scale.score(o.value or 0.0) for o in known.observations]])
        asked_also = [*predictions, *known.predictions]
        belief = self._believe(
            known, values, features, [[self._scale.predicted(p)] for p in asked_also], with_measured=True
        )[0]
        count = len(features)
        best = float(belief.mean[count:][feasible].max()) + MARGIN
        return belief.improvement(best)[:count]

    def _holds(self, features: Floats, predictions: Sequence[Prediction | None]) -> Floats:
        """The chance that every SLO holds."""
        ran = self.measured.only([bool(o.excess) for o in self.measured.observations])
        known = _subset(ran, self.maximise)
        names = sorted({name for o in known.observations for name in o.excess})
        if not names:
            return np.ones(len(features))
        values = np.array(
            [[excess_score(told_excess(o.excess.get(n, 0.0))) for o in known.observations] for n in names]
        )
        told = [[_predicted_excess(p, name) for name in names] for p in predictions]
        beliefs = self._believe(known, values, features, told, with_measured=False, names=names)
        found: Floats = np.prod([belief.below(0.0) for belief in beliefs], axis=0)
        return found

    def _believe(
        self,
        known: Measured,
        values: Floats,
        features: Floats,
        told: Sequence[Sequence[float]],
        *,
        with_measured: bool,
        names: Sequence[str] = (),
    ) -> list[Belief]:
        at, pending = known.features, self.pending.features

        def rows(predictions: Sequence[Prediction | None]) -> Floats:
            if not names:
                return np.array([[self._scale.predicted(p) for p in predictions]])
            return np.array([[_predicted_excess(p, name) for p in predictions] for name in names])

        return believe(
            Points(features=at, predicted=rows(known.predictions)),
            values,
            Points(features=np.vstack([features, at]) if with_measured else features, predicted=np.array(told).T),
            Shape(scales=self.scales, plain_scales=self.encoding.scales, structural=self.encoding.structural),
            Points(features=pending, predicted=rows(self.pending.predictions)) if len(pending) else None,
        )

    # --- whether it runs ----------------------------------------------------------------------------------------------

    def _runs(self, features: Floats, predictions: Sequence[Prediction | None]) -> Floats:
        """By the memory model's margins where there are any, times what crashes that they don't explain say."""
        lately = self.measured.last(CRASHES_OF)
        doubt = _memory_doubt(lately)
        unexplained = np.array([0.0 if o.ran else _unexplained(doubt, o, p) for o, p in lately.pairs()])
        chance = survives(features, lately.features, unexplained)
        chance *= untried_or_held(features, lately.features, unexplained, self.encoding.switches)
        with_margins = [p.margins for p in predictions if p is not None and p.margins is not None]
        if with_margins:
            has = np.array([p is not None and p.margins is not None for p in predictions])
            chance[has] *= doubt.holds(with_margins)
        return chance

    # --- what it costs, and what it would repeat ----------------------------------------------------------------------

    def _cost(self, predictions: Sequence[Prediction | None]) -> Floats:
        """Seconds of the machine over the usual: start-up, shorter where a launch has filled the compile cache, and
        load."""
        seen = {p.compiled for o, p in self.measured.pairs() if o.ran and p is not None and p.compiled is not None}
        startups = np.array([_startup_s(p, seen) for p in predictions])
        known = np.isfinite(startups)
        usual = float(np.median(startups[known])) if known.any() else 0.0
        seconds: Floats = self.load_s + np.where(known, startups, usual)
        return seconds / float(np.median(seconds))

    def _same(self, features: Floats, predictions: Sequence[Prediction | None]) -> Bools:
        """Whether a candidate is, within the noise, one that was launched or runs now."""
        ran = self.measured.only([o.launched for o in self.measured.observations])
        same = np.zeros(len(features), dtype=np.bool_)
        for known in (ran, self.pending):
            near = distances(features, known.features, self.scales) < NEAR
            for row, column in np.argwhere(near):
                same[row] = same[row] or _alike(predictions[row], known.predictions[column])
        return same

    def _twins(self, features: Floats, predictions: Sequence[Prediction | None]) -> Floats:
        """What candidates lose for those measured that the prior can't tell from them: no plateau is to be mapped."""
        ran = self.measured.only([o.ran for o in self.measured.observations])
        met = [each for known in (ran, self.pending) for each in self._signatures(known.features, known.predictions)]
        counts = Counter(each for each in met if each is not None)
        beyond = [max(0, counts[each] - TWINS + 1) for each in self._signatures(features, predictions)]
        return -math.log(TWIN_PENALTY) * np.array(beyond, dtype=np.float64)

    def _signatures(self, features: Floats, predictions: Sequence[Prediction | None]) -> list[object]:
        """Equal for candidates of one structure that the prior can't tell apart, but for noise; None: nothing is
        predicted."""
        structures = features[:, self.encoding.structural]
        return [_signature(row.tobytes(), p) for row, p in zip(structures, predictions, strict=True)]


def _subset(measured: Measured, maximise: bool) -> Measured:
    """The best and the latest, in order, where there are too many to be fitted in time."""
    count = len(measured.observations)
    if count <= SUBSET_BEST + SUBSET_LAST:
        return measured
    sign = -1.0 if maximise else 1.0
    worst = math.inf

    def rank(index: int) -> tuple[bool, float]:
        o = measured.observations[index]
        return not o.feasible, worst if o.value is None else sign * o.value

    best = sorted(range(count), key=rank)[:SUBSET_BEST]
    kept = {*best, *range(count - SUBSET_LAST, count)}
    return measured.only([index in kept for index in range(count)])


def _memory_doubt(measured: Measured) -> MemoryDoubt:
    doubt = MemoryDoubt.before()
    told = [(p.margins, o.ran) for o, p in measured.pairs() if p is not None and p.margins and (o.ran or o.of_memory)]
    doubt.learn([margins for margins, _ in told], [held for _, held in told])
    return doubt


def _unexplained(doubt: MemoryDoubt, observation: Observation, prediction: Prediction | None) -> float:
    """How much of a crash the memory model did not expect, as it is believed now."""
    if not observation.of_memory or prediction is None or prediction.margins is None:
        return 1.0
    return float(doubt.holds([prediction.margins])[0])


def _predicted_excess(prediction: Prediction | None, name: str) -> float:
    if prediction is None or name not in prediction.excess:
        return math.nan
    return excess_score(prediction.excess[name])


def _startup_s(prediction: Prediction | None, seen: set[object]) -> float:
    if prediction is None or prediction.startup_s is None:
        return math.nan
    if prediction.compiled in seen and prediction.warm_startup_s is not None:
        return prediction.warm_startup_s
    return prediction.startup_s


def _alike(one: Prediction | None, other: Prediction | None) -> bool:
    """Whether two predictions differ by no more than equal launches do; yes where nothing is predicted."""
    if one is None or other is None or not one.objective or not other.objective:
        return (one is None) == (other is None)
    if abs(math.log(one.objective / other.objective)) > NOISE_RATIO:
        return False
    names = one.excess.keys() & other.excess.keys()
    return all(abs(excess_score(one.excess[n]) - excess_score(other.excess[n])) <= NOISE_RATIO for n in names)


def _signature(structure: bytes, prediction: Prediction | None) -> object:
    if prediction is None or not prediction.objective:
        return None
    excesses = (round(excess_score(x) / 0.05) for _, x in sorted(prediction.excess.items()))
    return (structure, round(math.log(prediction.objective) / 0.02), *excesses)
