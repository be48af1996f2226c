"""The Optuna sampler: a study's trials in, the next candidate out.

A choice is a function of the seed, the trials that ended, those that run, and the records the prior was told: a study
that was interrupted goes on as it would have. All that is stored are ordinary trials, each with the expected gain that
it was chosen for, so that any other sampler can go on with the study, and this one with another's.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from statistics import median
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from optuna.samplers import BaseSampler

from autotune.records.spec import ParamValue
from autotune.records.trial import TrialRecord
from autotune.search.auto.candidates import Asks, Candidates, Option, key_of, unique
from autotune.search.auto.choice import LAUNCH_S, Asked, Chooser, Measured, Pick
from autotune.search.auto.encoding import encoding_of
from autotune.search.auto.gaussian import distances
from autotune.search.auto.history import History, Observation
from autotune.search.auto.landscape import Landscape
from autotune.search.auto.prior import Prior
from autotune.search.auto.settled import Expectation, why_settled

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.study import Study
    from optuna.trial import FrozenTrial, TrialState

Floats = NDArray[np.float64]

GAIN = "autotune:expected_gain"
"""System attribute of a trial: the gain in ln(objective) that was expected of it; absent while nothing was feasible."""
FIXED = "fixed_params"  # Optuna's own: what `enqueue_trial` asks for

SPREAD_SHARE, SPREAD_LEAST, SPREAD_MOST = 0.2, 3, 8
"""Without a prior the first launches are spread over the space: a share of the budget."""
RUNNING = -1  # the number of what has no outcome yet
LEADERS, ASTRAY = 2, 6  # measured candidates whose neighbours are looked at, and random ones two steps from the best


class AutoSampler(BaseSampler):
    """Proposes what is worth a launch most; see docs/search.md. `space` may be that of one engine or of several.

    `prior` None: candidates are judged by measurements alone. `trials`: the budget. Studies of several objectives are
    left to TPE, as nothing here weighs one against another.
    """

    def __init__(self, space: Asks, *, prior: Prior | None = None, seed: int, trials: int = 40) -> None:
        self._space = space
        self._prior = prior
        self._seed = seed
        self._spread = min(SPREAD_MOST, max(SPREAD_LEAST, round(SPREAD_SHARE * trials)))
        self._history = History()
        self._candidates = Candidates(space, encoding_of(space.distributions()))
        self._landscape: Landscape | None = None
        self._loads_s: list[float] = []
        self._rows: dict[int, Floats] = {}
        self._keys: dict[int, object] = {}
        self._several: BaseSampler | None = None
        self._last: Pick | None = None

    def observe(self, record: TrialRecord) -> None:
        """Let the prior learn from a record: what trials alone don't tell, such as times and the KV cache."""
        if self._prior is not None:
            self._prior.learn(record)
        if record.outcome.measured and record.measurements:
            self._loads_s.append(sum(level.duration_s for level in record.measurements))

    def why_settled(self, study: Study) -> str | None:
        """Return why further launches are not worth what they take; None while they are."""
        if len(study.directions) > 1:
            return None
        gains = [
            Expectation(number=trial.number, gain=trial.system_attrs[GAIN])
            for trial in study.get_trials(deepcopy=False)
            if GAIN in trial.system_attrs and trial.state.is_finished()
        ]
        known, _ = self._history.of(study)
        return why_settled(gains, launched=sum(o.launched for o in known))

    # --- Optuna's protocol --------------------------------------------------------------------------------------------

    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        """Every parameter, whether active or not: the space itself says what goes together."""
        if other := self._for_several(study):
            return other.infer_relative_search_space(study, trial)
        return self._space.distributions()

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """Return the active parameters of the candidate to be launched next."""
        if other := self._for_several(study):
            return other.sample_relative(study, trial, search_space)
        if not search_space:
            return {}
        pick = self._pick(study, trial)
        if pick.gain is not None:
            study._storage.set_trial_system_attr(trial._trial_id, GAIN, pick.gain)  # noqa: SLF001 - as Optuna's own do
        return dict(pick.option.params)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:  # noqa: ANN401 - Optuna's signature
        """Draw a parameter that the candidate lacks: one that a value enqueued by hand made active."""
        if other := self._for_several(study):
            return other.sample_independent(study, trial, param_name, param_distribution)
        rng = self._rng(trial.number, param_name)
        axis = next(iter(encoding_of({param_name: param_distribution}).axes))
        return rng.choice(axis.values) if axis.values else axis.at(rng.random())

    def after_trial(self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None) -> None:
        """Nothing of one's own: trials are read when they are needed."""
        if other := self._for_several(study):
            other.after_trial(study, trial, state, values)

    def _for_several(self, study: Study) -> BaseSampler | None:
        from optuna.samplers import TPESampler  # noqa: PLC0415 - only where it is needed

        if len(study.directions) > 1 and self._several is None:
            self._several = TPESampler(seed=self._seed)
        return self._several

    # --- choosing -----------------------------------------------------------------------------------------------------

    def _pick(self, study: Study, trial: FrozenTrial) -> Pick:
        known, running = self._history.of(study)
        landscape = self._looked_at(study)
        rng = self._rng(trial.number, "near")
        options = self._options(landscape, known, running, trial.system_attrs.get(FIXED, {}), rng)
        if self._prior is None and sum(o.launched for o in known) + len(running) < self._spread:
            return self._farthest(options, known, running)
        chooser = Chooser(
            encoding=self._candidates.encoding,
            scales=landscape.scales,
            maximise=study.direction.name == "MAXIMIZE",
            measured=self._measured(landscape, known),
            pending=self._measured(landscape, [_running(params) for params in running]),
            load_s=median(self._loads_s) if self._loads_s else LAUNCH_S,
        )
        self._last = chooser.pick(Asked(options=tuple(options), predictions=tuple(map(landscape.predict, options))))
        return self._last

    def _looked_at(self, study: Study) -> Landscape:
        if self._landscape is None:
            self._landscape = Landscape(
                self._candidates, self._prior, self._seed, maximise=study.direction.name == "MAXIMIZE"
            )
        return self._landscape.refreshed()

    def _measured(self, landscape: Landscape, observations: Sequence[Observation]) -> Measured:
        rows = [self._row(observation) for observation in observations]
        return Measured(
            observations=tuple(observations),
            predictions=tuple(map(landscape.predicted, observations)),
            features=np.array(rows).reshape(len(rows), len(self._candidates.encoding.axes)),
        )

    def _row(self, observation: Observation) -> Floats:
        """A finished trial's place; those of a thousand trials are not to be worked out at every choice."""
        if observation.number not in self._rows:
            row: Floats = self._candidates.encoding.features([observation.params])[0]
            if observation.number == RUNNING:
                return row
            self._rows[observation.number] = row
        return self._rows[observation.number]

    def _key(self, finished: Observation) -> object:
        if finished.number not in self._keys:
            self._keys[finished.number] = key_of(finished.params)
        return self._keys[finished.number]

    def _options(
        self,
        landscape: Landscape,
        known: Sequence[Observation],
        running: Sequence[Mapping[str, ParamValue]],
        fixed: Mapping[str, ParamValue],
        rng: random.Random,
    ) -> list[Option]:
        """What has not been tried: the pool, neighbours of the best, and some farther off; with what is `fixed`."""
        options = list(landscape.pool)
        for leader in _leaders(known, maximise=landscape.maximise):
            options += self._candidates.beside(leader.params, self._rng(leader.number, "beside"))
            options += self._candidates.astray(leader.params, rng, ASTRAY)
        if fixed:
            several = (self._candidates.legal({**option.params, **fixed}, rng) for option in options)
            options = [option for option in several if option is not None] or options
        tried = {self._key(o) for o in known} | {key_of(params) for params in running}
        fresh = [option for option in unique(options) if option.key not in tried]
        return fresh or self._candidates.drawn(rng, 50) or options

    def _farthest(
        self, options: Sequence[Option], known: Sequence[Observation], running: Sequence[Mapping[str, ParamValue]]
    ) -> Pick:
        """The candidate that lies farthest from all others; the first of the pool when there is none."""
        encoding = self._candidates.encoding
        tried = encoding.features([*(o.params for o in known), *running])
        if not len(tried):
            return Pick(option=options[0], gain=None, chance=1.0)
        apart = distances(encoding.features([o.params for o in options]), tried, encoding.scales).min(axis=1)
        return Pick(option=options[int(np.argmax(apart))], gain=None, chance=1.0)

    def _rng(self, *what: object) -> random.Random:
        return random.Random(f"{self._seed} {what}")  # noqa: S311 - a search, nothing secret


def _leaders(known: Sequence[Observation], *, maximise: bool) -> list[Observation]:
    """The best that hold every SLO; where none does, those nearest to it."""
    ran = [o for o in known if o.ran and o.value is not None]

    def rank(o: Observation) -> tuple[float, float]:
        missed = sum(max(0.0, x) for x in o.excess.values())
        return missed, -(o.value or 0.0) if maximise else (o.value or 0.0)

    return sorted(ran, key=rank)[:LEADERS]


def _running(params: Mapping[str, ParamValue]) -> Observation:
    return Observation(number=RUNNING, params=params, value=None, ran=True)
