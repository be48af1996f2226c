"""What a study comes to, from its records alone: `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.records.spec import StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import Outcome, TrialRecord
from autotune.search.costs import study_cost
from autotune.search.winner import gain, nearest, pick, reference_of
from autotune.trial.run import utc_now


def summarise(
    spec: StudySpec, records: Sequence[TrialRecord], *, stop_reason: str, finished: bool, wall_s: float
) -> StudySummary:
    """What `records` come to: best, nearest, gain over the reference, and how far it can be relied on."""
    best = pick(records, spec.objective)
    reference = reference_of(records)
    closest = nearest(records) if best is None else None
    settled = best is not None and best.outcome is Outcome.OK
    simulated = spec.simulated or any(record.simulated for record in records)
    return StudySummary(
        study=spec.name,
        simulated=simulated,
        finished=finished,
        stop_reason=stop_reason,
        updated_utc=utc_now(),
        best=best.number if best else None,
        nearest=closest.number if closest else None,
        reference=reference.number if reference else None,
        gain=gain(best, reference, spec.objective) if best else None,
        objective=best.objective if best else None,
        settled=settled,
        confirmed=settled and not simulated,
        quality="unchecked" if spec.quality == "unchecked" else "not_applicable",
        launched=sum(record.outcome is not Outcome.RULED_OUT for record in records),
        ruled_out=sum(record.outcome is Outcome.RULED_OUT for record in records),
        ruled_out_by=dict(Counter(record.ruled_out_by for record in records if record.ruled_out_by)),
        outcomes=dict(Counter(record.outcome.value for record in records)),
        wall_s=wall_s,
        warnings=_warnings(best, reference),
        versions=records[-1].versions if records else {},
        cost=study_cost(records, best, reference, spec.price),
    )


def _warnings(best: TrialRecord | None, reference: TrialRecord | None) -> tuple[str, ...]:
    found: list[str] = []
    if best is not None and best is not reference:
        found.append("best and reference were measured in one launch each: launches differ by more than repeats do")
    if best is not None and best.outcome is Outcome.UNSURE:
        found.append("an SLO of the best configuration could not be settled: measure longer")
    if reference is None:
        found.append("the reference could not be measured: there is no gain to state")
    return tuple(found)
