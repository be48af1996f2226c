"""One level in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from autotune.measure import estimates
from autotune.measure.audit import doubts
from autotune.measure.samples import CUT, Samples, latencies, select
from autotune.measure.throughput import rates
from autotune.measure.violations import count
from autotune.records.metrics import LATENCIES, PLAIN, Metric, known_names, parse_metric
from autotune.records.spec import Slo
from autotune.records.trial import Estimate, LevelRecord, Measurement

_NOTHING: Mapping[str, float] = {}


def measure(
    level: LevelRecord,
    *,
    metrics: Iterable[str],
    slos: Sequence[Slo],
    gpus: int,
    confidence: float,
    extra: Mapping[str, float] = _NOTHING,
) -> Measurement:
    """Return a level's usual metrics and those named by `metrics` and `slos`, with intervals at `confidence`.

    `gpus` divides the per-GPU rates (0 counts as 1: a machine without GPUs). `extra` gives plain figures of the launch
    (`startup_s`, `gpu_memory_bytes`). A metric without samples is missing from `values`. Raises ValueError for a name
    that is no metric.
    """
    samples = select(level)
    wanted = _parsed([*known_names(), *metrics, *(slo.metric for slo in slos)])
    values = dict(_latencies(samples, wanted, confidence))
    values |= rates(level, slos, gpus, confidence)
    values |= _error_ratio(samples, confidence)
    values |= {name: Estimate(value=extra[name], low=None, high=None, n=1) for name in PLAIN if name in extra}
    begin, end = level.window_s
    return Measurement(
        offered_rps=level.offered_rps,
        concurrency=level.concurrency,
        duration_s=end - begin,
        requests=len(samples.started),
        errors=len(samples.failed),
        values=values,
        violations=count(samples, slos),
        counters={"cut": float(len(samples.cut)), "warmup": float(sum(r.warmup for r in level.requests))},
        client=level.client,
        untrusted=tuple(doubts(level, samples)),
    )


def _parsed(names: Iterable[str]) -> list[Metric]:
    metrics = {name: parse_metric(name) for name in names}
    unknown = [name for name, metric in metrics.items() if metric is None]
    if unknown:
        raise ValueError(f"no such metric: {', '.join(unknown)}; known: {', '.join(known_names())}")
    return [metric for metric in metrics.values() if metric is not None]


def _latencies(samples: Samples, wanted: Sequence[Metric], confidence: float) -> Iterator[tuple[str, Estimate]]:
    for base in LATENCIES:
        series = latencies(samples.succeeded, base)
        for metric in (m for m in wanted if m.base == base):
            if metric.quantile is None:
                estimate = estimates.mean(series, confidence)
            else:
                estimate = estimates.quantile(series, metric.quantile, confidence)
            if estimate is not None:
                yield metric.name, estimate


def _error_ratio(samples: Samples, confidence: float) -> dict[str, Estimate]:
    failed = np.array([r.error is not None for r in samples.started if r.error != CUT], dtype=np.bool_)
    estimate = estimates.ratio(failed, confidence)
    return {} if estimate is None else {"error_ratio": estimate}
