"""Levels of load come in, the trial's figures, verdict and outcome go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune import measure, slo
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import Estimate, LevelRecord, Measurement, Outcome, Ruling, TrialRecord
from autotune.trial.applied import applied


def judged(record: TrialRecord, objective: ObjectiveSpec, levels: Sequence[LevelRecord], gpus: int) -> TrialRecord:
    """Return the record with the figures of its levels, their verdict and the outcome; `gpus` divides rates."""
    extra = {"startup_s": record.startup_s} if record.startup_s is not None else {}
    measured = [
        (
            level,
            measure.measure(
                level,
                metrics=[objective.metric],
                slos=objective.slos,
                gpus=gpus,
                confidence=objective.confidence,
                extra=extra,
            ),
        )
        for level in levels
    ]
    verdict = slo.judge(objective, measured)
    outcomes = {Ruling.PASS: Outcome.OK, Ruling.FAIL: Outcome.SLO_MISS, Ruling.UNSURE: Outcome.UNSURE}
    outcome = outcomes[verdict.ruling]
    client_limited = any("client" in why for why in verdict.untrusted)
    not_applied = applied(record.args, record.resolved).differing.values()
    verdict = replace(verdict, untrusted=(*verdict.untrusted, *not_applied))
    if client_limited:  # also a miss may be the client's doing
        outcome = Outcome.CLIENT_LIMITED
    elif verdict.untrusted and outcome is Outcome.OK:
        outcome = Outcome.UNSURE
    return replace(
        record,
        outcome=outcome,
        verdict=verdict,
        measurements=tuple(measurement for _, measurement in measured),
        objective=pooled(objective.metric, [measurement for _, measurement in measured]),
    )


def pooled(metric: str, measurements: Sequence[Measurement]) -> Estimate | None:
    """The mean of a metric over the levels of one launch; its interval spans the mean bounds. None if unmeasured."""
    found = [values for m in measurements if (values := m.values.get(metric)) is not None]
    if not found:
        return None
    return Estimate(
        value=sum(estimate.value for estimate in found) / len(found),
        low=_mean([estimate.low for estimate in found]),
        high=_mean([estimate.high for estimate in found]),
        n=sum(estimate.n for estimate in found),
    )


def _mean(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return sum(known) / len(known) if len(known) == len(bounds) else None
