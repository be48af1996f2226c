"""The study's metrics as Prometheus queries on the engines' own metric names.

vLLM's as of 0.32 (its /metrics page), TensorRT-LLM's as of tensorrt_llm/metrics/collector.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import EngineKind

HISTOGRAMS: Mapping[EngineKind, Mapping[str, str]] = {
    EngineKind.VLLM: {
        "ttft_ms": "vllm:time_to_first_token_seconds",
        "tpot_ms": "vllm:request_time_per_output_token_seconds",
        "itl_ms": "vllm:inter_token_latency_seconds",
        "e2e_ms": "vllm:e2e_request_latency_seconds",
    },
    EngineKind.TENSORRT_LLM: {
        "ttft_ms": "trtllm_time_to_first_token_seconds",
        "tpot_ms": "trtllm_time_per_output_token_seconds",
        "e2e_ms": "trtllm_e2e_request_latency_seconds",
    },
}
"""Seconds in Prometheus, milliseconds in a study."""

SECONDS_PER_MS = 1e-3


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """`per_unit` turns a limit in the metric's unit into one of the query's result."""

    text: str
    per_unit: float


def query_of(metric: str, engine: EngineKind, pods: str, window: str) -> Query | None:
    """Return the query for a metric over the pods that a label matcher selects; None where the engine has none."""
    if metric == "error_ratio":
        return _errors(engine, pods, window)
    parsed = parse_metric(metric)
    name = HISTOGRAMS.get(engine, {}).get(parsed.base) if parsed else None
    if parsed is None or name is None:
        return None
    if parsed.kind is MetricKind.MEAN:
        parts = (f"sum(rate({name}_{part}{{{pods}}}[{window}]))" for part in ("sum", "count"))
        return Query(text=" / ".join(parts), per_unit=SECONDS_PER_MS)
    buckets = f"sum by (le) (rate({name}_bucket{{{pods}}}[{window}]))"
    return Query(text=f"histogram_quantile({parsed.quantile:g}, {buckets})", per_unit=SECONDS_PER_MS)


def _errors(engine: EngineKind, pods: str, window: str) -> Query | None:
    """Answers of 5xx over all, health checks apart. TensorRT-LLM's older releases count no errors."""
    if engine is not EngineKind.VLLM:
        return None
    api = 'handler=~"/v1/.*"'
    failed, asked = (
        f"sum(rate(http_requests_total{{{','.join(part for part in parts if part)}}}[{window}]))"
        for parts in ((pods, api, 'status="5xx"'), (pods, api))
    )
    # A sum over no series is empty, not 0: before the first error there is no such series.
    return Query(text=f"({failed} or vector(0)) / {asked}", per_unit=1.0)
