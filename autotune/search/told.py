"""What Optuna is told about a trial: the one table from outcome to state, value and constraints.

    outcome                          state      value         constraints
    ok, slo_miss, unsure             COMPLETE   objective     per SLO v = x/(1+x) of its relative excess x; launch 0
    the same, objective unmeasured   PRUNED     none          as above
      or its audit failed
    answers differ (wrong_output)    PRUNED     none          quality = number of SLOs + v of its worst limit
    the candidate's own failure      PRUNED     none          launch = 1 + number of SLOs
      for samplers that learn from COMPLETE alone: COMPLETE with the worst value seen so far
    environment, interrupted, …      FAIL       none          none: samplers do not see it
    a soak, whatever came of it      FAIL       none          none: its load is not the search's

TPE ranks infeasible trials by the sum of their positive violations. Each v is below 1, so a candidate that could not
run ranks below one that missed every SLO. Wrong answers rank between: a nearly right one is no nearer to an SLO, for
nothing else of it was measured, but it is nearer to being right than one that did not start. Told FAIL instead,
crashes teach nothing (docs/adr/003).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.records.finals import FinalStage
from autotune.records.spec import Direction, ObjectiveSpec
from autotune.records.trial import Outcome, TrialRecord
from autotune.slo import NOT_MEASURED, constraint_value

if TYPE_CHECKING:
    from optuna.trial import TrialState

LAUNCH = "launch"
QUALITY = "quality"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """State by name (COMPLETE, PRUNED, FAIL), value, and constraints (satisfied at or below 0) by SLO metric."""

    state: str
    value: float | None = None
    constraints: Mapping[str, float] = field(default_factory=dict)

    @property
    def trial_state(self) -> TrialState:
        """The state as Optuna's enum."""
        from optuna.trial import TrialState  # noqa: PLC0415 - heavy

        return TrialState[self.state]


def told(
    record: TrialRecord, objective: ObjectiveSpec, *, complete_only: bool = False, seen: Sequence[float] = ()
) -> Told:
    """Return what Optuna is told about `record`.

    `complete_only`: the sampler learns from COMPLETE trials alone (GP, NSGA-II); `seen` are the objective values of
    the trials told so far, of which the worst then stands in for a candidate that could not run.
    """
    if record.final is not None and record.final.stage is not FinalStage.ROUND:
        return Told(state="FAIL")
    if record.outcome.measured:
        return _told_measured(record, objective)
    if record.outcome.teaches_infeasible:
        constraints = _constraints(objective, _why_infeasible(record, objective))
        if complete_only and seen:
            worst = min(seen) if objective.direction is Direction.MAXIMIZE else max(seen)
            return Told(state="COMPLETE", value=worst, constraints=constraints)
        return Told(state="PRUNED", constraints=constraints)
    return Told(state="FAIL")


def _why_infeasible(record: TrialRecord, objective: ObjectiveSpec) -> dict[str, float]:
    if record.outcome is not Outcome.WRONG_OUTPUT or record.quality is None:
        return {LAUNCH: 1.0 + len(objective.slos)}
    worst = max((figure.excess or 0.0 for figure in record.quality.figures), default=0.0)
    v = min(NOT_MEASURED, worst / (1 + worst)) if worst > 0 else NOT_MEASURED  # of other tokens there is no figure
    return {QUALITY: len(objective.slos) + v}


def _told_measured(record: TrialRecord, objective: ObjectiveSpec) -> Told:
    rulings = record.verdict.slos if record.verdict else ()
    constraints = _constraints(objective, {slo.metric: constraint_value(slo) for slo in rulings})
    untrusted = record.verdict is not None and bool(record.verdict.untrusted)
    if record.objective is None or untrusted:
        return Told(state="PRUNED", constraints=constraints)
    return Told(state="COMPLETE", value=record.objective.value, constraints=constraints)


def _constraints(objective: ObjectiveSpec, values: Mapping[str, float]) -> dict[str, float]:
    """Every trial has the same keys in the same order: GPSampler refuses anything else."""
    checked = () if objective.quality is None else (QUALITY,)
    keys = (*sorted({slo.metric for slo in objective.slos}), *checked, LAUNCH)
    return {key: values.get(key, 0.0) for key in keys}
