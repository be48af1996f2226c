"""The metrics that objectives and SLOs may name, each defined once (docs/vocabulary.md has the formulas).

A name is either a plain metric (`output_tok_per_s`) or a latency with a statistic (`ttft_ms.p99`, `tpot_ms.mean`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum

LATENCIES = ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms")
_STATISTIC = re.compile(r"^(mean|p(\d{1,2})(\.\d+)?)$")


class MetricKind(StrEnum):
    QUANTILE = "quantile"  # a quantile of a per-request (ITL: per-gap) latency
    MEAN = "mean"  # a mean of the same
    RATIO = "ratio"  # a share of requests
    RATE = "rate"  # something a second
    COST = "cost"  # what something delivered took: dollars or energy, over a rate
    AMOUNT = "amount"  # a plain figure of the launch (start-up seconds, bytes)


PLAIN: dict[str, MetricKind] = {
    "error_ratio": MetricKind.RATIO,
    "output_tok_per_s": MetricKind.RATE,
    "output_tok_per_s_per_gpu": MetricKind.RATE,
    "total_tok_per_s": MetricKind.RATE,
    "total_tok_per_s_per_gpu": MetricKind.RATE,
    "request_rps": MetricKind.RATE,
    "goodput_rps": MetricKind.RATE,
    "goodput_rps_per_gpu": MetricKind.RATE,
    "capacity_rps": MetricKind.RATE,
    "capacity_rps_per_gpu": MetricKind.RATE,
    "capacity_concurrency": MetricKind.RATE,
    "usd_per_million_output_tok": MetricKind.COST,
    "usd_per_useful_response": MetricKind.COST,
    "energy_wh_per_million_output_tok": MetricKind.COST,
    "startup_s": MetricKind.AMOUNT,
    "gpu_memory_bytes": MetricKind.AMOUNT,
}


PRICED = ("usd_per_million_output_tok", "usd_per_useful_response")
"""Metrics that need a price."""

ENERGY = "energy_wh_per_million_output_tok"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A parsed metric name. `quantile` in (0, 1) for quantiles, else None; `base` is the name without its statistic."""

    name: str
    base: str
    kind: MetricKind
    quantile: float | None = None


def parse_metric(name: str) -> Metric | None:
    """Return the metric called `name`, or None when there is no such metric."""
    if name in PLAIN:
        return Metric(name=name, base=name, kind=PLAIN[name])
    base, _, statistic = name.partition(".")
    match = _STATISTIC.match(statistic)
    if base not in LATENCIES or match is None:
        return None
    if statistic == "mean":
        return Metric(name=name, base=base, kind=MetricKind.MEAN)
    quantile = float(statistic[1:]) / 100
    if not 0 < quantile < 1:
        return None
    return Metric(name=name, base=base, kind=MetricKind.QUANTILE, quantile=quantile)


def known_names() -> list[str]:
    """Every plain name and the usual latency statistics, for messages and completion."""
    return [*PLAIN, *(f"{base}.{stat}" for base in LATENCIES for stat in ("mean", "p50", "p90", "p95", "p99"))]
