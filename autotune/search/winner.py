"""Which trial a study hands over: the best that met every SLO; ties go to the configuration nearest the reference."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records.spec import Direction, ObjectiveSpec
from autotune.records.summary import Gain
from autotune.records.trial import Estimate, Outcome, Role, Ruling, TrialRecord
from autotune.trial.differences import differences


def reference_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The reference trial that was measured, None while there is none."""
    return next((r for r in records if r.role is Role.REFERENCE and r.outcome.measured), None)


def pick(records: Sequence[TrialRecord], objective: ObjectiveSpec) -> TrialRecord | None:
    """Return the trial to hand over.

    Among trusted trials whose SLOs all pass; where none passes, among those whose SLOs could not be settled; None when
    every candidate missed. Figures whose intervals overlap the best one's are ties.
    """
    for ruling in (Ruling.PASS, Ruling.UNSURE):
        contenders = [r for r in records if _contends(r, ruling)]
        if contenders:
            return _break_ties(contenders, reference_of(records), objective)
    return None


def nearest(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the measured trial that misses its SLOs by the least in sum, None when nothing was measured."""
    measured = [r for r in records if r.verdict is not None and r.outcome.measured]
    return min(measured, key=_shortfall, default=None)


def gain(best: TrialRecord, reference: TrialRecord | None, objective: ObjectiveSpec) -> Gain | None:
    """Return by which factor `best` beats `reference` (above 1 is better), None without two measured figures.

    The bounds combine the worst of one with the best of the other, so they are wider than the stated confidence.
    """
    if reference is None or reference.objective is None or best.objective is None:
        return None
    upper, lower = best.objective, reference.objective
    if objective.direction is Direction.MINIMIZE:
        upper, lower = lower, upper
    if lower.value <= 0:
        return None
    return Gain(
        value=upper.value / lower.value,
        low=upper.low / lower.high if upper.low is not None and lower.high else None,
        high=upper.high / lower.low if upper.high is not None and lower.low else None,
    )


def _contends(record: TrialRecord, ruling: Ruling) -> bool:
    wanted = Outcome.OK if ruling is Ruling.PASS else Outcome.UNSURE
    return (
        record.outcome is wanted and record.objective is not None and not (record.verdict and record.verdict.untrusted)
    )


def _break_ties(
    contenders: Sequence[TrialRecord], reference: TrialRecord | None, objective: ObjectiveSpec
) -> TrialRecord:
    sign = 1.0 if objective.direction is Direction.MAXIMIZE else -1.0

    def value(record: TrialRecord) -> float:
        return sign * record.objective.value if record.objective else float("-inf")

    top = max(contenders, key=value)
    tied = [record for record in contenders if record is top or _overlap(record.objective, top.objective)]
    return min(tied, key=lambda record: (distance(record, reference), -value(record)))


def _overlap(one: Estimate | None, other: Estimate | None) -> bool:
    if one is None or other is None or None in (one.low, one.high, other.low, other.high):
        return False
    return one.low <= other.high and other.low <= one.high  # type: ignore[operator]


def distance(record: TrialRecord, reference: TrialRecord | None) -> int:
    """How many arguments differ from what the reference ran with; 0 without a reference."""
    return len(differences(record, reference)) if reference else 0


def _shortfall(record: TrialRecord) -> float:
    slos = record.verdict.slos if record.verdict else ()
    return sum(max(0.0, slo.excess) if slo.excess is not None else 10.0 for slo in slos)
