"""One level in numbers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from autotune.measure import estimates
from autotune.measure.audit import doubts
from autotune.measure.counters import as_counters, figures
from autotune.measure.crosscheck import findings
from autotune.measure.samples import CUT, Samples, latencies, select
from autotune.measure.throughput import rates
from autotune.measure.violations import count
from autotune.records.metrics import LATENCIES, PLAIN, Metric, known_names, parse_metric
from autotune.records.spec import Slo
from autotune.records.trial import Estimate, LevelRecord, Measurement

FOR_JUDGING = ("request_rps", "e2e_ms.mean")
"""How many requests were in flight, which the judge's floors go by."""

RATE_LIMITED = 429  # HTTP: too many requests

_NOTHING: Mapping[str, float] = {}


def measure(
    level: LevelRecord,
    *,
    metrics: Iterable[str],
    slos: Sequence[Slo],
    gpus: int,
    confidence: float,
    extra: Mapping[str, float] = _NOTHING,
    usual: bool = True,
) -> Measurement:
    """Return a level's usual metrics and those named by `metrics` and `slos`, with intervals at `confidence`.

    Without `usual` those alone, and what the judge needs beside them: for looks while a level runs, many times faster.
    `gpus` divides the per-GPU rates (0 counts as 1: a machine without GPUs). `extra` gives plain figures of the launch
    (`startup_s`, `gpu_memory_bytes`). A metric without samples is missing from `values`. Raises ValueError for a name
    that is no metric.
    """
    samples = select(level)
    wanted = _parsed([*(known_names() if usual else FOR_JUDGING), *metrics, *(slo.metric for slo in slos)])
    values = dict(_latencies(samples, wanted, confidence))
    values |= rates(level, slos, gpus, confidence, {metric.name for metric in wanted})
    values |= _error_ratio(samples, confidence)
    engine, hardware = figures(level)
    memory = {} if hardware.engine_memory_bytes is None else {"gpu_memory_bytes": hardware.engine_memory_bytes}
    values |= {name: Estimate(value=value, low=None, high=None, n=1) for name, value in _plain({**memory, **extra})}
    begin, end = level.window_s
    found = list(findings(level, engine, hardware))
    limited = sum(r.status == RATE_LIMITED for r in samples.failed)
    return Measurement(
        offered_rps=level.offered_rps,
        concurrency=level.concurrency,
        duration_s=end - begin,
        requests=len(samples.started),
        errors=len(samples.failed),
        values=values,
        violations=count(samples, slos),
        counters={
            "cut": float(len(samples.cut)),
            "warmup": float(sum(r.warmup for r in level.requests)),
            **({"rate_limited": float(limited)} if limited else {}),
            **as_counters(engine, hardware, sum(r.output_tokens or 0 for r in level.requests)),
        },
        client=level.client,
        stopped=level.stopped,
        notes=(*level.notes, *_limits(limited, samples), *(finding.text for finding in found if not finding.doubt)),
        untrusted=(*doubts(level, samples), *(finding.text for finding in found if finding.doubt)),
    )


def _limits(limited: int, samples: Samples) -> Iterator[str]:
    if limited:
        yield f"{limited} of {len(samples.started)} requests were refused by the server's rate limit (HTTP 429)"


def _plain(figures_of_launch: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    return ((name, figures_of_launch[name]) for name in PLAIN if name in figures_of_launch)


def _parsed(names: Iterable[str]) -> list[Metric]:
    metrics = {name: parse_metric(name) for name in names}
    unknown = [name for name, metric in metrics.items() if metric is None]
    if unknown:
        raise ValueError(f"no such metric: {', '.join(unknown)}; known: {', '.join(known_names())}")
    return [metric for metric in metrics.values() if metric is not None]


def _latencies(samples: Samples, wanted: Sequence[Metric], confidence: float) -> Iterator[tuple[str, Estimate]]:
    for base in LATENCIES:
        asked = [metric for metric in wanted if metric.base == base]
        series = latencies(samples.succeeded if asked else (), base)
        for metric in asked:
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
