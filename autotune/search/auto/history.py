"""What Optuna's trials tell: a study's finished trials in, observations out.

Nothing else is read, so that a study which another sampler began, or which only lies in a storage, can go on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.records.spec import ParamValue
from autotune.records.trial import Outcome
from autotune.search.told import LAUNCH, QUALITY

if TYPE_CHECKING:
    import optuna

MEMORY = frozenset({Outcome.OOM_STARTUP, Outcome.OOM_LOAD})
HELD, NOT_MEASURED = 0.0, 0.999  # of a constraint: at or below is satisfied; at or above there was nothing to measure


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """A finished trial. `value`: the objective, None where none was measured. `excess`: by SLO, x / (1 + |x|) of its
    relative excess. `ran`: whether the engine held the candidate. `of_memory`: it ran out of memory.

    `args`: what the engine was given; None of a trial that another program told.
    `bound`: the value is only known to be no better than this (a launch that was ended early for missing the
    incumbent's load). No trial says so yet.
    """

    number: int
    params: Mapping[str, ParamValue]
    args: Mapping[str, object] | None = None
    value: float | None
    excess: Mapping[str, float] = field(default_factory=dict)
    ran: bool
    launched: bool = True
    of_memory: bool = False
    bound: bool = False

    @property
    def feasible(self) -> bool:
        """Whether it ran and missed no SLO."""
        return self.ran and self.value is not None and all(x <= HELD for x in self.excess.values())


BOUND = "autotune:bound"
"""System attribute of a trial whose value is a bound."""


def observation_of(trial: optuna.trial.FrozenTrial) -> Observation | None:
    """Return what a trial tells; None of one that samplers are not to see, or that is not finished."""
    from optuna.trial import TrialState  # noqa: PLC0415 - heavy

    if trial.state not in (TrialState.COMPLETE, TrialState.PRUNED):
        return None
    constraints = {name: float(value) for name, value in trial.constraints.items()}
    ran = all(constraints.pop(name, 0.0) <= HELD for name in (LAUNCH, QUALITY))  # and said what it should
    outcome = trial.user_attrs.get("outcome")
    value = trial.value if trial.state is TrialState.COMPLETE and ran else None
    args, params = trial.user_attrs.get("args"), dict(trial.params)
    return Observation(
        number=trial.number,
        params=params,
        args=args if isinstance(args, Mapping) else None,
        value=value if value is not None and math.isfinite(value) else None,
        excess=constraints if ran else {},
        ran=ran,
        launched=outcome != Outcome.RULED_OUT.value,
        of_memory=outcome in {each.value for each in MEMORY},
        bound=bool(trial.system_attrs.get(BOUND)),
    )


@dataclass(slots=True)
class History:
    """The observations of one study; a finished trial is read once."""

    _read: dict[int, Observation | None] = field(default_factory=dict)

    def of(self, study: optuna.Study) -> tuple[list[Observation], list[Mapping[str, ParamValue]]]:
        """Return what is known, in order of number, and the parameters of what is still running."""
        running: list[Mapping[str, ParamValue]] = []
        known: list[Observation] = []
        for trial in study.get_trials(deepcopy=False):
            if not trial.state.is_finished():
                running += [dict(trial.params)] if trial.params else []
                continue
            if trial.number not in self._read:
                self._read[trial.number] = observation_of(trial)
            observation = self._read[trial.number]
            known += [observation] if observation is not None else []
        return known, running
