"""Telemetry of a healthy level, which a test then spoils in one place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autotune.records import counters
from autotune.records.trial import GpuSample, LevelRecord, RequestRecord, ServerSample, Telemetry
from tests.measure.making import WINDOW_S, level

GIB = 2**30


def page(requests: Sequence[RequestRecord], share: float = 1.0, **changes: float) -> dict[str, float]:
    """The engine's page once a share of these requests was served; `changes` by the names of `records.counters`."""
    whole = [r for r in requests if r.error is None]
    count = len(whole) * share
    ttft_s = sum(r.chunk_s[0] - r.sent_s for r in requests if r.chunk_s) - 0.002 * len(whole)
    values: dict[str, float] = {
        "RUNNING": 2.0 if 0 < share < 1 else 0.0,
        "WAITING": 0.0,
        "KV_USE_RATIO": 0.3 if 0 < share < 1 else 0.0,
        "FINISHED": count,
        "PROMPT_TOKENS": share * sum(r.prompt_tokens or 0 for r in whole),
        "OUTPUT_TOKENS": share * sum(r.output_tokens or 0 for r in whole),
        "PREEMPTIONS": 0.0,
        "PREFIX_QUERIES": share * sum(r.prompt_tokens or 0 for r in whole),
        "PREFIX_HITS": 0.0,
    }
    named = {getattr(counters, name)[0]: value for name, value in (values | changes).items()}
    return {**named, **histogram("TTFT_S", count, share * ttft_s)}


def histogram(name: str, count: float, total: float) -> dict[str, float]:
    bare = getattr(counters, name)[0]
    return {f"{bare}_count": count, f"{bare}_sum": total}


def gpu(at_s: float, **fields: Any) -> GpuSample:
    usual: dict[str, Any] = {
        "gpu": "0",
        "memory_used_bytes": 70 * GIB,
        "others_bytes": 0,
        "utilisation_ratio": 0.95,
        "sm_clock_mhz": 1980.0,
        "temperature_c": 55.0,
        "power_w": 500.0,
        "energy_j": 500.0 * at_s,
    }
    return GpuSample(at_s=at_s, **(usual | fields))


def gpus(**fields: Any) -> list[GpuSample]:
    """A sample every five seconds, from before the level to after it."""
    return [gpu(at_s, **fields) for at_s in (-1.0, *range(0, 75, 5))]


def told(
    requests: Sequence[RequestRecord],
    *,
    samples: Sequence[GpuSample] = (),
    notes: Sequence[str] = (),
    begin: Mapping[str, float] | None = None,
    end: Mapping[str, float] | None = None,
    **fields: Any,
) -> LevelRecord:
    """A level with its telemetry; `begin` and `end` overwrite the first and the last page."""
    pages = [{**page(requests, 0.0), **(begin or {})}, page(requests, 0.5), {**page(requests), **(end or {})}]
    times = (-0.5, sum(WINDOW_S) / 2, WINDOW_S[1] + 5)
    server = tuple(ServerSample(at_s=at, values=values) for at, values in zip(times, pages, strict=True))
    telemetry = Telemetry(server=server, gpus=tuple(samples), notes=tuple(notes))
    return level(requests, telemetry=telemetry, **fields)
