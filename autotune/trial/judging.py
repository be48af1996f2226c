"""Levels of load come in, the trial's figures, verdict and outcome go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from statistics import fmean

from autotune import cost, load, measure, slo
from autotune.measure.audit import CLIENT_LIMITED
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import ObjectiveSpec, PriceSpec
from autotune.records.trial import Estimate, LevelRecord, Measurement, Outcome, Ruling, TrialRecord, Verdict
from autotune.trial.applied import applied
from autotune.trial.at_capacity import objective_at, verdict_at


def judged(
    record: TrialRecord,
    objective: ObjectiveSpec,
    levels: Sequence[LevelRecord],
    gpus: int,
    price: PriceSpec | None = None,
) -> TrialRecord:
    """Return the record with the figures of its levels, their verdict and the outcome; `gpus` divides rates."""
    levels_measured = [(level, measured(level, objective, gpus, record.startup_s, price)) for level in levels]
    verdict, value = _decided(record, objective, levels_measured, gpus)
    outcomes = {Ruling.PASS: Outcome.OK, Ruling.FAIL: Outcome.SLO_MISS, Ruling.UNSURE: Outcome.UNSURE}
    outcome = outcomes[verdict.ruling]
    client_limited = any(why.startswith(CLIENT_LIMITED) for why in verdict.untrusted)
    not_applied = applied(record.args, record.resolved).differing.values()
    guessed = {note: None for level in levels for note in level.notes if note.endswith(load.UNCOUNTED)}
    verdict = replace(verdict, untrusted=(*verdict.untrusted, *not_applied, *guessed))
    if client_limited:  # also a miss may be the client's doing
        outcome = Outcome.CLIENT_LIMITED
    elif verdict.untrusted and outcome is Outcome.OK:
        outcome = Outcome.UNSURE
    return replace(
        record,
        outcome=outcome,
        verdict=verdict,
        measurements=tuple(measurement for _, measurement in levels_measured),
        objective=value,
    )


def _decided(
    record: TrialRecord, objective: ObjectiveSpec, levels: Sequence[tuple[LevelRecord, Measurement]], gpus: int
) -> tuple[Verdict, Estimate | None]:
    """The verdict and the objective's figure: of all levels, or where a capacity was searched, of those beside it."""
    if record.capacity is None:
        return slo.judge(objective, levels), pooled(objective.metric, [measurement for _, measurement in levels])
    found = objective_at(objective, levels, record.capacity, gpus)
    value = found if isinstance(found, Estimate) else pooled(objective.metric, found)
    return verdict_at(objective, levels, record.capacity), value


def measured(
    level: LevelRecord,
    objective: ObjectiveSpec,
    gpus: int,
    startup_s: float | None,
    price: PriceSpec | None = None,
    *,
    usual: bool = True,
) -> Measurement:
    """Return the usual figures of one level and those that the objective asks for, without `usual` those alone; `gpus`
    divides rates and is what `price` is paid for."""
    found = measure.measure(
        level,
        metrics=[objective.metric, *(cost.NEEDED if _asks_for_cost(objective) else ())],
        slos=objective.slos,
        gpus=gpus,
        confidence=objective.confidence,
        extra={} if startup_s is None else {"startup_s": startup_s},
        usual=usual,
    )
    costs = cost.cost_values(found.values, found.counters, price=price, gpus=gpus)
    return replace(found, values={**found.values, **costs}) if costs else found


def _asks_for_cost(objective: ObjectiveSpec) -> bool:
    asked = (parse_metric(name) for name in (objective.metric, *(slo.metric for slo in objective.slos)))
    return any(metric is not None and metric.kind is MetricKind.COST for metric in asked)


def pooled(metric: str, measurements: Sequence[Measurement]) -> Estimate | None:
    """Return the mean of a metric over the levels of one launch, which may be of different lengths; its interval spans
    the mean bounds. None if unmeasured."""
    having = [m for m in measurements if metric in m.values]
    if not having:
        return None
    found, weights = [m.values[metric] for m in having], slo.weights_of(metric, having)
    return Estimate(
        value=fmean([estimate.value for estimate in found], weights),
        low=_mean([estimate.low for estimate in found], weights),
        high=_mean([estimate.high for estimate in found], weights),
        n=sum(estimate.n for estimate in found),
    )


def _mean(bounds: Sequence[float | None], weights: Sequence[float]) -> float | None:
    """Weighted; None where one is missing."""
    known = [bound for bound in bounds if bound is not None]
    return fmean(known, weights) if len(known) == len(bounds) else None
