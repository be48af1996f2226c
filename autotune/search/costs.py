"""What a study cost, from its records, and after how much traffic its gain has paid that back."""

from __future__ import annotations

from collections.abc import Sequence

from autotune import cost
from autotune.records.spec import StudySpec
from autotune.records.summary import StudyCost
from autotune.records.trial import Estimate, TrialRecord
from autotune.trial.launches import figure_over, launches_of

PER_TOKEN = "usd_per_million_output_tok"
SECONDS_PER_HOUR = 3600.0


def study_cost(
    records: Sequence[TrialRecord], best: TrialRecord | None, reference: TrialRecord | None, spec: StudySpec
) -> StudyCost | None:
    """Return what the launches occupied and what that costs; None without a price by the hour."""
    price = spec.price
    if price is None or price.hourly_usd(1) is None:
        return None
    by_gpu = price.usd_per_gpu_hour is not None
    hours = sum(occupied_s(record) * (record.gpus or 1 if by_gpu else 1) for record in records) / SECONDS_PER_HOUR
    usd = hours * (price.hourly_usd(1) or 0.0)
    prices = [None if record is None else _per_token(records, record, spec) for record in (reference, best)]
    return StudyCost(hours=hours, usd=usd, payback_tok=_payback(usd, *prices))


def occupied_s(record: TrialRecord) -> float:
    """Return how long a launch held its machine: its wall time, or a simulation's own clock, which runs ahead of it;
    and before that, what it waited for its checkpoint to be prepared."""
    return record.waited_s + max(
        record.wall_s, (record.startup_s or 0.0) + sum(level.duration_s for level in record.measurements)
    )


def _per_token(records: Sequence[TrialRecord], record: TrialRecord, spec: StudySpec) -> Estimate | None:
    launches = launches_of(records, record) or [record]
    return figure_over(launches, PER_TOKEN, price=spec.price, confidence=spec.objective.confidence)


def _payback(usd: float, before: Estimate | None, after: Estimate | None) -> float | None:
    if before is None or after is None or not _clearly_lower(after, before):
        return None
    return cost.payback_tok(usd, before.value, after.value)


def _clearly_lower(one: Estimate, other: Estimate) -> bool:
    return one.high is not None and other.low is not None and one.high < other.low
