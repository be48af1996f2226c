"""A trial's figures from its record alone, over its levels: what reports, costs and comparisons go by."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log
from statistics import fmean

from autotune import cost
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import ObjectiveSpec, PriceSpec
from autotune.records.trial import Estimate, Measurement, TrialRecord
from autotune.trial.at_capacity import BESIDE, CAPACITIES
from autotune.trial.judging import pooled


def figure_of(record: TrialRecord, metric: str, price: PriceSpec | None = None) -> Estimate | None:
    """Return a trial's figure for any metric, None where it has none.

    Levels are pooled; of a search for capacity only those beside the capacity, where its figures hold. Costs are made
    anew from the rates and this `price`, which may not be the one that stood in the study when it was measured.
    """
    if metric in CAPACITIES:
        return _capacity(record, metric)
    if metric == "startup_s" and record.startup_s is not None:
        return Estimate(value=record.startup_s, low=None, high=None, n=1)
    levels = at_operating_point(record)
    parsed = parse_metric(metric)
    if parsed is not None and parsed.kind is MetricKind.COST:
        return _costs(record, levels, price).get(metric)
    return pooled(metric, levels)


def at_operating_point(record: TrialRecord) -> Sequence[Measurement]:
    """Return the levels that say how a trial serves: all, or those measured nearest to its capacity."""
    if record.capacity is None or not record.measurements:
        return record.measurements
    at = record.capacity.value.value or min(map(_load, record.measurements))
    if at <= 0:
        return record.measurements
    apart = {id(level): abs(log(_load(level) / at)) for level in record.measurements if _load(level) > 0}
    nearest = min(apart.values(), default=0.0) + BESIDE
    return [level for level in record.measurements if apart.get(id(level), nearest + 1) <= nearest]


def operating_limits_of(record: TrialRecord, objective: ObjectiveSpec) -> cost.OperatingLimits | None:
    """Return how much one replica should take on; None without a capacity in requests a second, found and above 0."""
    capacity, e2e = record.capacity, figure_of(record, "e2e_ms.mean")
    if capacity is None or capacity.of != "rps" or capacity.value.value <= 0 or e2e is None or e2e.value <= 0:
        return None
    limits = [slo.limit for slo in objective.slos if slo.metric.startswith("ttft_ms.")]
    ttft = figure_of(record, "ttft_ms.p50")
    return cost.operating_limits(
        capacity_rps=capacity.value.value,
        e2e_ms=e2e.value,
        ttft_ms=None if ttft is None else ttft.value,
        ttft_limit_ms=min(limits, default=None),
    )


def _load(level: Measurement) -> float:
    return float(level.offered_rps or level.concurrency or 0.0)


def _capacity(record: TrialRecord, metric: str) -> Estimate | None:
    found = record.capacity
    if found is None or found.of != CAPACITIES[metric]:
        return None
    by = (record.gpus or 1) if metric.endswith("_per_gpu") else 1
    value = found.value
    return Estimate(
        value=value.value / by,
        low=None if value.low is None else value.low / by,
        high=None if value.high is None else value.high / by,
        n=value.n,
    )


def _costs(record: TrialRecord, levels: Sequence[Measurement], price: PriceSpec | None) -> Mapping[str, Estimate]:
    rates = {name: rate for name in cost.NEEDED if (rate := pooled(name, levels)) is not None}
    energies = [level.counters[cost.ENERGY_COUNTER] for level in levels if cost.ENERGY_COUNTER in level.counters]
    counters = {cost.ENERGY_COUNTER: fmean(energies)} if energies else {}
    return cost.cost_values(rates, counters, price=price, gpus=record.gpus or 1)
