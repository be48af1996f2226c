"""What a study comes to, from its records alone: `summary.json`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.records.quality import QualityStatus
from autotune.records.spec import StudySpec
from autotune.records.summary import Gain, StudySummary
from autotune.records.trial import Outcome, TrialRecord
from autotune.search.costs import study_cost
from autotune.search.engine_results import engine_results
from autotune.search.finals import Finals, finals_of
from autotune.search.finals_summary import final_gain, final_objective, finals_summary
from autotune.search.winner import gain, nearest, pick, reference_of
from autotune.trial.run import utc_now


def summarise(
    spec: StudySpec, records: Sequence[TrialRecord], *, stop_reason: str, finished: bool, wall_s: float
) -> StudySummary:
    """What `records` come to: best, nearest, gain over the reference, and how far it can be relied on."""
    searched = [record for record in records if record.final is None]
    finals = finals_of(spec, records, late=finished)
    decided = finals if finals is not None and finals.over else None
    best = pick(searched, spec.objective) if decided is None else _winner(searched, decided)
    reference = reference_of(searched)
    closest = nearest(searched) if best is None else None
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
        gain=_gain(spec, best, reference, decided),
        objective=final_objective(decided) if decided else best.objective if best else None,
        settled=settled,
        confirmed=settled and not simulated and not _missing(spec, finals, decided),
        quality=_quality(spec, best),
        launched=sum(record.outcome is not Outcome.RULED_OUT for record in searched),
        ruled_out=sum(record.outcome is Outcome.RULED_OUT for record in searched),
        ruled_out_by=dict(Counter(record.ruled_out_by for record in records if record.ruled_out_by)),
        outcomes=dict(Counter(record.outcome.value for record in searched)),
        wall_s=wall_s,
        prepare_s=sum(record.waited_s for record in records),
        warnings=(*_warnings(best, reference, decided), *_missing(spec, finals, decided)),
        versions=records[-1].versions if records else {},
        cost=study_cost(records, best, reference, spec),
        finals=None if decided is None else finals_summary(spec, records, decided),
        engines=engine_results(spec, searched, decided),
    )


def _winner(searched: Sequence[TrialRecord], finals: Finals) -> TrialRecord | None:
    return next((record for record in searched if record.number == finals.winner), None)


def _gain(
    spec: StudySpec, best: TrialRecord | None, reference: TrialRecord | None, finals: Finals | None
) -> Gain | None:
    """By the finals where there were any: the search's best is the luckiest of many."""
    if finals is not None:
        return final_gain(finals, spec.objective.direction)
    return gain(best, reference, spec.objective) if best else None


def _missing(spec: StudySpec, finals: Finals | None, decided: Finals | None) -> tuple[str, ...]:
    """What of the finals that the study asks for was not done, so that nothing is confirmed."""
    if spec.finals is None or finals is None:
        return ()
    if decided is None:
        return ("the finals were not run: best and gain are those of the search, which are optimistic",)
    if spec.finals.soak_s > 0 and decided.winner is not None and decided.soak is None:
        return ("there was no soak of the best configuration",)
    return ()


def _quality(spec: StudySpec, best: TrialRecord | None) -> str:
    """Of what is handed over: checked and passed, not checked, or nothing in it that would change the output."""
    if spec.quality == "unchecked":
        return "unchecked"
    if best is None or best.quality is None or best.quality.status is QualityStatus.REFERENCE:
        return "not_applicable"
    return best.quality.status.value


def _warnings(best: TrialRecord | None, reference: TrialRecord | None, finals: Finals | None = None) -> tuple[str, ...]:
    found: list[str] = []
    if finals is not None:
        found += [f"trial {number} was left out of the choice: {why}" for number, why in finals.out.items()]
        found += finals.soak.soak.notes if finals.soak and finals.soak.soak else ()
    elif best is not None and best is not reference:
        found.append("best and reference were measured in one launch each: launches differ by more than repeats do")
    if best is not None and best.outcome is Outcome.UNSURE:
        found.append("an SLO of the best configuration could not be settled: measure longer")
    if reference is None:
        found.append("the reference could not be measured: there is no gain to state")
    return tuple(found)
