"""What each of several engines came to: its best, its reference, its gain, and why one was given up."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.records.spec import Direction, StudySpec
from autotune.records.summary import EngineResult, Gain
from autotune.records.trial import Estimate, Outcome, TrialRecord
from autotune.search.finals import Finals
from autotune.search.turns import doomed, launched
from autotune.search.winner import gain, pick, reference_of


def engine_results(spec: StudySpec, searched: Sequence[TrialRecord], finals: Finals | None) -> tuple[EngineResult, ...]:
    """Return a result for each engine of a study, in its order; () where there is only one. `finals`: once they are
    over, each engine's best is the best of those that entered."""
    return tuple(
        _result(spec, str(name), [record for record in searched if record.engine == name], finals)
        for name in spec.engine_names
        if name is not None
    )


def _result(spec: StudySpec, name: str, records: Sequence[TrialRecord], finals: Finals | None) -> EngineResult:
    best, reference = _best(spec, records, finals), reference_of(records)
    return EngineResult(
        name=name,
        kind=spec.of_engine(name).engine.kind.value,
        best=best.number if best else None,
        reference=reference.number if reference else None,
        objective=_figure(best, finals),
        gain=_gain(spec, best, reference, finals),
        launched=len(launched(records)),
        ruled_out=sum(record.outcome is Outcome.RULED_OUT for record in records),
        given_up=doomed(records),
    )


def _gain(
    spec: StudySpec, best: TrialRecord | None, reference: TrialRecord | None, finals: Finals | None
) -> Gain | None:
    """Over its own reference; by the finals' launches where both were in them."""
    if best is None or reference is None or best is reference:
        return None
    pair = (best.number, reference.number)
    ratio = None if finals is None else finals.look.ratio(*(pair if _maximised(spec) else pair[::-1]))
    if ratio is None:
        return gain(best, reference, spec.objective)
    return Gain(value=ratio.value, low=ratio.low, high=ratio.high)


def _maximised(spec: StudySpec) -> bool:
    return spec.objective.direction is Direction.MAXIMIZE


def _best(spec: StudySpec, records: Sequence[TrialRecord], finals: Finals | None) -> TrialRecord | None:
    by_number = {record.number: record for record in records}
    if finals is None:
        return pick(records, spec.objective)
    if finals.winner in by_number:
        return by_number[finals.winner]
    held = [number for number in finals.entered if number in by_number and number not in finals.out]
    if not held:
        return pick([record for record in records if record.number not in finals.out], spec.objective)
    sign = 1.0 if _maximised(spec) else -1.0
    return by_number[max(held, key=lambda number: sign * finals.look.level(number).value)]


def _figure(best: TrialRecord | None, finals: Finals | None) -> Estimate | None:
    if best is None:
        return None
    measured_again = finals is not None and any(best.number in one for one in finals.rounds)
    return finals.look.level(best.number) if finals is not None and measured_again else best.objective
