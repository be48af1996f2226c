"""Which trial a search found best: it met every SLO; ties go to the configuration nearest the reference.

What is handed over is decided by launches made after the search (`search.finals`) where the study has them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.records.spec import Direction, ObjectiveSpec
from autotune.records.summary import Gain
from autotune.records.trial import Estimate, Outcome, Role, Ruling, TrialRecord
from autotune.search.separation import LAUNCH_SD
from autotune.trial.differences import differences, flatten


def reference_of(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """The reference trial that was measured, None while there is none."""
    return next((r for r in records if r.role is Role.REFERENCE and r.outcome.measured), None)


def pick(records: Sequence[TrialRecord], objective: ObjectiveSpec) -> TrialRecord | None:
    """Return the trial that the search found best, None when every candidate missed.

    Figures whose intervals overlap the best one's are ties.
    """
    contenders = ranking(records, objective)
    if not contenders:
        return None
    reference, top = reference_of(records), contenders[0]
    tied = [record for record in contenders if record is top or _overlap(record.objective, top.objective)]
    return min(tied, key=lambda record: (distance(record, reference), contenders.index(record)))


def ranking(records: Sequence[TrialRecord], objective: ObjectiveSpec) -> list[TrialRecord]:
    """Return the trials of a search that may be handed over, the best figure first.

    These are trusted trials whose SLOs all pass; where none passes, those whose SLOs could not be settled.
    """
    sign = -1.0 if objective.direction is Direction.MAXIMIZE else 1.0
    for ruling in (Ruling.PASS, Ruling.UNSURE):
        contenders = [record for record in records if record.final is None and _contends(record, ruling)]
        if contenders:
            return sorted(contenders, key=lambda r: sign * r.objective.value if r.objective else math.inf)
    return []


def finalists(
    ranked: Sequence[TrialRecord], most: int, reference: TrialRecord | None = None
) -> tuple[TrialRecord, ...]:
    """Return the best few of a ranking: those whose intervals overlap the best one's, both widened by what launches
    of one configuration differ by (two standard deviations), without the reference. Figures have to be above 0. Of
    several engines the best of each is among them, however far behind."""
    if not ranked:
        return ()
    top = _widened(ranked[0])
    beside = None if reference is None else reference.number
    near = [r for r in ranked if r.number != beside and r.objective and r.objective.value > 0]
    chosen = [r for r in near if _overlap(_widened(r), top)][:most]
    firsts = {r.engine: r for r in reversed(near)}
    there = {ranked[0].engine, *(r.engine for r in chosen)}
    return tuple(chosen + [r for r in near if r is firsts[r.engine] and r.engine not in there])


def _widened(record: TrialRecord) -> Estimate | None:
    figure, factor = record.objective, math.exp(2 * LAUNCH_SD)
    if figure is None:
        return None
    low, high = (figure.value if bound is None else bound for bound in (figure.low, figure.high))
    return Estimate(value=figure.value, low=low / factor, high=high * factor, n=figure.n)


def nearest(records: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the measured trial that misses its SLOs by the least in sum, None when nothing was measured."""
    measured = [r for r in records if r.verdict is not None and r.outcome.measured and r.final is None]
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


def _overlap(one: Estimate | None, other: Estimate | None) -> bool:
    if one is None or other is None or None in (one.low, one.high, other.low, other.high):
        return False
    return one.low <= other.high and other.low <= one.high  # type: ignore[operator]


OTHER_ENGINE = 1_000  # arguments: another engine is farther than any of one's own


def distance(record: TrialRecord, reference: TrialRecord | None) -> tuple[int, float]:
    """Return how far a configuration is from the reference: how many arguments differ from what it ran with, then by
    how much in sum: the doublings between two numbers above 0, else 1 each. (0, 0) without a reference. Another
    engine is farther than any other change."""
    if reference is None:
        return 0, 0.0
    ran_with = {**flatten(reference.defaults), **flatten(reference.resolved), **flatten(reference.args)}
    changed = differences(record, reference)
    if record.engine != reference.engine:
        return OTHER_ENGINE, 0.0
    return len(changed), sum(_doublings(ran_with.get(name), value) for name, value in changed.items())


def _doublings(one: object, other: object) -> float:
    values = [v for v in (one, other) if isinstance(v, int | float) and not isinstance(v, bool) and v > 0]
    return abs(math.log2(values[0] / values[1])) if len(values) == 2 else 1.0


def _shortfall(record: TrialRecord) -> float:
    slos = record.verdict.slos if record.verdict else ()
    return sum(max(0.0, slo.excess) if slo.excess is not None else 10.0 for slo in slos)
