"""How often each SLO's limit was exceeded: the counts that the judge decides on.

A success is judged by its latency. A failed request violates every latency SLO. A cut request is censored: it violates
where what is known of it already exceeds the limit, it is judged as usual where its latency was known before the cut (a
TTFT), else it is left out and counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from autotune.measure import estimates
from autotune.measure.samples import CUT, Samples
from autotune.records.metrics import LATENCIES, Metric, MetricKind, parse_metric
from autotune.records.spec import Bound, Slo
from autotune.records.trial import RequestRecord, Violations


def count(samples: Samples, slos: Iterable[Slo]) -> tuple[Violations, ...]:
    """Return the counts of every upper bound on a latency quantile or on a ratio, in the order of `slos`."""
    parsed = ((slo, parse_metric(slo.metric)) for slo in slos if slo.bound is Bound.MAX)
    return tuple(
        _tally(slo, _exceedances(samples, metric, slo.limit))
        for slo, metric in parsed
        if metric is not None and metric.kind in {MetricKind.QUANTILE, MetricKind.RATIO}
    )


def is_good(request: RequestRecord, slos: Iterable[Slo]) -> bool:
    """Tell whether a success meets every upper bound on a latency by itself (goodput, Zhong et al. 2024, DistServe).

    A limit on any statistic of TTFT, TPOT or E2E is a limit for the request; one on ITL holds for the request's own
    quantile or mean of its gaps. A latency that the request doesn't have (the TPOT of one token) is met.
    """
    limits = ((parse_metric(slo.metric), slo.limit) for slo in slos if slo.bound is Bound.MAX)
    return all(_own(request, metric) <= limit for metric, limit in limits if metric and metric.base in LATENCIES)


def _own(request: RequestRecord, metric: Metric) -> float:
    if metric.base != "itl_ms":
        value: float | None = getattr(request, metric.base)
        return 0.0 if value is None else value
    if not request.itl_ms:
        return 0.0
    if metric.quantile is None:
        return float(np.mean(request.itl_ms))
    return float(np.quantile(request.itl_ms, metric.quantile, method="inverted_cdf"))


def _tally(slo: Slo, seen: Sequence[bool | None]) -> Violations:
    known = np.array([s for s in seen if s is not None], dtype=np.bool_)
    return Violations(
        metric=slo.metric,
        limit=slo.limit,
        judged=len(known),
        violated=int(known.sum()),
        censored=len(seen) - len(known),
        inflation=estimates.inflation(known),
    )


def _exceedances(samples: Samples, metric: Metric, limit: float) -> list[bool | None]:
    """One entry a sample in order of time: exceeded, held, or None when it can't be told."""
    if metric.kind is MetricKind.RATIO:
        return [r.error is not None for r in samples.started if r.error != CUT]
    if metric.base == "itl_ms":
        timed = [entry for r in samples.started for entry in _gap_exceedances(r, limit, samples.end_s)]
        return [exceeded for _, exceeded in sorted(timed)]
    seen = (_exceeds(r, metric.base, limit, samples.end_s) for r in samples.started if _applies(r, metric.base))
    return list(seen)


def _applies(request: RequestRecord, base: str) -> bool:
    """False for a success that lacks the latency: the TPOT of a single token says nothing about its SLO."""
    return request.error is not None or getattr(request, base) is not None


def _exceeds(request: RequestRecord, base: str, limit: float, end_s: float) -> bool | None:
    if request.error is None or (base == "ttft_ms" and request.error == CUT and request.chunk_s):
        return bool(getattr(request, base) > limit)
    if request.error != CUT:
        return True
    return True if _at_least_ms(request, base, end_s) > limit else None


def _at_least_ms(request: RequestRecord, base: str, end_s: float) -> float:
    """What a cut request's latency can't fall below any more; its TPOT as if all its tokens had come at the cut."""
    cut_s = end_s if request.done_s is None else request.done_s
    if base != "tpot_ms":
        return (cut_s - request.start_s) * 1e3
    if not request.chunk_s:
        return 0.0
    return (cut_s - request.chunk_s[0]) * 1e3 / max(1, request.asked_output_tokens - 1)


def _gap_exceedances(request: RequestRecord, limit: float, end_s: float) -> list[tuple[float, bool]]:
    """(when, exceeded) of each gap. A failed request violates with all the gaps it was asked for, so that its weight is
    that of a success; a cut one is judged by the gaps that it had, the open one once it exceeds the limit.
    """
    if request.error not in {None, CUT}:
        return [(request.start_s, True)] * max(1, request.asked_output_tokens - 1)
    closed = [(at_s, gap > limit) for at_s, gap in zip(request.chunk_s[1:], request.itl_ms, strict=True)]
    cut_s = end_s if request.done_s is None else request.done_s
    if request.error == CUT and request.chunk_s and (cut_s - request.chunk_s[-1]) * 1e3 > limit:
        closed.append((cut_s, True))
    return closed
