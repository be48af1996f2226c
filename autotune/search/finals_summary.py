"""What finals that are over come to, for `summary.json`."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records.spec import Direction, StudySpec
from autotune.records.summary import Finalist, FinalsSummary, Gain
from autotune.records.trial import Estimate, TrialRecord
from autotune.search.finals import Finals
from autotune.search.winner import gain, pick, reference_of


def finals_summary(spec: StudySpec, records: Sequence[TrialRecord], finals: Finals) -> FinalsSummary:
    """Return the summary of finals, the search's own claim beside it."""
    searched = [record for record in records if record.final is None]
    best = pick(searched, spec.objective)
    everyone = finals.entered if finals.reference is None else (*finals.entered, finals.reference)
    return FinalsSummary(
        winner=finals.winner,
        ties=finals.ties,
        reference=finals.reference,
        finalists=tuple(_finalist(finals, number) for number in everyone),
        rounds=len(finals.rounds),
        launches=sum(r.final is not None and r.final.after == searched[-1].number for r in records),
        why=finals.why,
        error_rate=finals.look.error,
        launch_sd=finals.look.spread[0],
        search_best=None if best is None else best.number,
        search_gain=None if best is None else gain(best, reference_of(searched), spec.objective),
        soak_trial=None if finals.soak is None else finals.soak.number,
        soak=None if finals.soak is None else finals.soak.soak,
    )


def final_gain(finals: Finals, direction: Direction) -> Gain | None:
    """Return the winner's gain over the reference by the finals' launches alone; None where there is none to tell."""
    if finals.winner is None or finals.reference is None or finals.winner == finals.reference:
        return None
    pair = (finals.winner, finals.reference)
    ratio = finals.look.ratio(*(pair if direction is Direction.MAXIMIZE else pair[::-1]))
    return None if ratio is None else Gain(value=ratio.value, low=ratio.low, high=ratio.high)


def final_objective(finals: Finals) -> Estimate | None:
    """Return the winner's figure by the finals' launches alone."""
    return None if finals.winner is None else finals.look.level(finals.winner)


def _finalist(finals: Finals, number: int) -> Finalist:
    launches = sum(number in one for one in finals.rounds)
    return Finalist(
        trial=number,
        launches=launches,
        objective=finals.look.level(number) if launches else None,
        out=finals.out.get(number),
        behind=number in finals.behind,
    )
