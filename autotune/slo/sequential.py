"""The damped sequential test: is the share of violations above what an SLO allows?

Violations come in bursts: the variance of their number is D times that of independent ones. Wald's sequential
probability ratio (1945) of p1 = 2 p* against p0 = p*/2, p* being the allowed share, is therefore divided by D:

    L = (S ln(p1/p0) + (n - S) ln((1-p1)/(1-p0))) / D      pass at L <= -b, fail at L >= b, else unsure

with b = ln(confidence / (1 - confidence)), 2.94 at 95 %. Between p0 and p1 is the indifference zone, where either
ruling may come out: near capacity the share grows so steeply with the rate that the zone is a narrow band of it.

D can't be taken from the level alone: the quiet stretch that looks like a pass has a small D too. Hence floors.

Being sequential, the test may be made after every request: who stops once it has spoken errs no more often than the
floors allow (`stopping`; measured under such looking in docs/measurement.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.records.metrics import LATENCIES, MetricKind, parse_metric
from autotune.records.spec import Bound, LoadSpec, Slo

_OPEN_FLOOR = 110.0
"""D of an open loop at 0.85 of the saturated rate: bursts are queues that build up and drain again, and there they last
45 to 140 requests for a p90, a p95 and a p99 alike (docs/measurement.md)."""

_IN_FLIGHT = 0.5
"""Floor a request in flight: those served together share their fate. Simulated engines with a fixed number of clients
show 0.3 to 0.5 (docs/measurement.md)."""

_LEAST = 4.0
"""Never trust less: failures and stalls hit several requests at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """Violations of one SLO pooled over the levels of a launch, and the inflation D to damp them by."""

    judged: int
    violated: int
    inflation: float


def allowed_share(slo: Slo) -> float | None:
    """Return the share of violations that an SLO allows: 1 - q, or the limit of a ratio; None for other SLOs."""
    metric = parse_metric(slo.metric)
    if metric is None or slo.bound is not Bound.MAX:
        return None
    if metric.kind is MetricKind.RATIO:
        return slo.limit
    return None if metric.quantile is None else round(1 - metric.quantile, 12)  # 0.1, not 0.09999999999999998


def inflation_floor(slo: Slo, *, open_loop: bool, in_flight: float | None) -> float:
    """Return the least D to damp by. `in_flight`: mean number of requests in the server, None when not known."""
    metric = parse_metric(slo.metric)
    if metric is None or metric.base not in LATENCIES:
        return _LEAST
    return max(_OPEN_FLOOR if open_loop else _LEAST, _IN_FLIGHT * (in_flight or 0.0))


def statistic(counts: Counts, share: float) -> float:
    """Return L; infinite where no violation is allowed and one was seen, or where all are allowed."""
    if share <= 0:
        return math.inf if counts.violated else 0.0
    if share >= 1:
        return -math.inf
    bad, good = _steps(share)
    return (counts.violated * bad + (counts.judged - counts.violated) * good) / counts.inflation


def boundary(confidence: float) -> float:
    """Return b: Wald's bounds for equal error rates 1 - confidence."""
    return math.log(confidence / (1 - confidence))


def requests_needed_to_pass(slo: Slo, confidence: float, load: LoadSpec | None = None) -> float:
    """Return how many samples (requests; gaps for ITL) without one violation an SLO takes to pass.

    A level with fewer can only fail it or leave it unsure. Infinite for a limit that allows no violation, 0 for an SLO
    that is not judged by counts. Without `load` an open loop is meant.
    """
    share = allowed_share(slo)
    if share is None:
        return 0
    clients = None if load is None else load.concurrency
    return samples_to_pass(share, confidence, inflation_floor(slo, open_loop=clients is None, in_flight=clients))


def samples_to_pass(share: float, confidence: float, inflation: float) -> float:
    """Return the least n at which no violation at all gives L <= -b."""
    if share >= 1:
        return 0
    return math.inf if share <= 0 else math.ceil(boundary(confidence) * inflation / -_steps(share)[1])


def _steps(share: float) -> tuple[float, float]:
    """Log likelihood ratios of a violation and of its absence. Above a third, p1 is halfway to 1 instead of 2 p*."""
    low, high = share / 2, min(2 * share, (1 + share) / 2)
    return math.log(high / low), math.log((1 - high) / (1 - low))
