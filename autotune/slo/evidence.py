"""What the levels of one launch say together about one SLO: a pooled figure, pooled counts, the size of the excess."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Bound, Slo
from autotune.records.trial import Estimate, LevelRecord, Measurement
from autotune.slo.sequential import Counts, inflation_floor

Levels = Sequence[tuple[LevelRecord, Measurement]]


def estimate_of(metric: str, levels: Levels) -> Estimate | None:
    """Return a metric over all levels: the mean of the levels' values, weighted by their seconds (rates) or samples.

    Half-widths add in quadrature, as the levels follow each other; a side that one level can't bound stays open. None
    when no level has the metric.
    """
    found = [m.values[metric] for _, m in levels if metric in m.values]
    if len(found) < 2:
        return found[0] if found else None
    weights = weights_of(metric, [m for _, m in levels if metric in m.values])
    value = sum(w * e.value for w, e in zip(weights, found, strict=True))
    below = _joint([None if e.low is None else w * (e.value - e.low) for w, e in zip(weights, found, strict=True)])
    above = _joint([None if e.high is None else w * (e.high - e.value) for w, e in zip(weights, found, strict=True)])
    return Estimate(
        value=value,
        low=None if below is None else value - below,
        high=None if above is None else value + above,
        n=sum(e.n for e in found),
    )


def weights_of(metric: str, measurements: Sequence[Measurement]) -> list[float]:
    """Return what each level that has a metric counts in a mean over them, 1 in all: by its seconds for a rate, else by
    its samples; the same for all where none has any."""
    parsed = parse_metric(metric)
    by_time = parsed is not None and parsed.kind is MetricKind.RATE
    amounts = [m.duration_s if by_time else float(m.values[metric].n) for m in measurements]
    total = sum(amounts)
    return [amount / total if total else 1 / len(amounts) for amount in amounts]


def counts_of(slo: Slo, levels: Levels) -> Counts:
    """Return the SLO's violations over all levels. D is the larger of the levels' mean inflation and the floor."""
    found = [(lv, m, v) for lv, m in levels for v in m.violations if (v.metric, v.limit) == (slo.metric, slo.limit)]
    judged = sum(v.judged for _, _, v in found)
    seen = sum(v.inflation * v.judged for _, _, v in found) / judged if judged else 1.0
    floor = max((_floor(slo, level, m) for level, m, _ in found), default=1.0)
    return Counts(judged=judged, violated=sum(v.violated for _, _, v in found), inflation=max(seen, floor))


def excess_of(slo: Slo, value: float) -> float:
    """Return by how much a value misses the limit, relative to it; at most 0 inside. Infinite for a miss of limit 0."""
    over = value - slo.limit if slo.bound is Bound.MAX else slo.limit - value
    if slo.limit == 0:
        return math.inf if over > 0 else 0.0
    return over / abs(slo.limit)


def _joint(halves: Sequence[float | None]) -> float | None:
    known = [half for half in halves if half is not None]
    return math.hypot(*known) if len(known) == len(halves) else None


def _floor(slo: Slo, level: LevelRecord, measurement: Measurement) -> float:
    """Requests in flight: the level's concurrency, or by Little's law the rate times the mean time in the server."""
    if level.concurrency is not None:
        return inflation_floor(slo, open_loop=False, in_flight=level.concurrency)
    rate, time_ms = (measurement.values.get(name) for name in ("request_rps", "e2e_ms.mean"))
    in_flight = rate.value * time_ms.value / 1e3 if rate and time_ms else None
    return inflation_floor(slo, open_loop=True, in_flight=in_flight)
