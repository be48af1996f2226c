"""The `/metrics` page of `trtllm-serve`: JSON of the iterations since it was last read.

Reading empties it, therefore what it tells is added up here. Names are the page's own, below `trtllm:`; which of them
the audit reads stands in `records.counters`. Counts that decide whether a level is believed (requests, tokens, cache
hits) are not among those: no GPU has shown yet that they mean the same as vLLM's.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

IDLE_AFTER_S = 1.0
"""So long without an iteration, and the engine is taken to be idle: the page keeps silent then."""

SUMMED = {
    "trtllm:completed_requests_total": ("numCompletedRequests",),
    "trtllm:context_tokens_total": ("inflightBatchingStats", "numCtxTokens"),
    "trtllm:draft_tokens_total": ("specDecodingStats", "numDraftTokens"),
    "trtllm:accepted_tokens_total": ("specDecodingStats", "numAcceptedTokens"),
    "trtllm:queue_seconds_count": ("numNewActiveRequests",),
}
LATEST = {
    "trtllm:reused_blocks_total": ("kvCacheStats", "reusedBlocks"),
    "trtllm:missed_blocks_total": ("kvCacheStats", "missedBlocks"),
    "trtllm:gpu_memory_bytes": ("gpuMemUsage",),
}


class IterationStats:
    """Adds up what the page tells. `take` may be called by several threads."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._values: dict[str, float] = {}
        self._paused = 0.0
        self._heard_s = clock()

    def take(self, page: str) -> Mapping[str, float]:
        """Add a page and return all figures so far; a page that is no JSON list adds nothing."""
        with self._lock:
            iterations = _iterations(page)
            for iteration in iterations:
                self._add(iteration)
            now_s = self._clock()
            if iterations:
                self._heard_s = now_s
            elif now_s - self._heard_s > IDLE_AFTER_S and self._values:
                self._values |= {"trtllm:running_requests": 0.0, "trtllm:waiting_requests": 0.0}
            return dict(self._values)

    def _add(self, iteration: Mapping[str, Any]) -> None:
        values = self._values
        for name, path in SUMMED.items():
            if (value := _number(iteration, *path)) is not None:
                values[name] = values.get(name, 0.0) + value
        values |= {name: value for name, path in LATEST.items() if (value := _number(iteration, *path)) is not None}
        self._add_batch(iteration)
        used, most = (_number(iteration, "kvCacheStats", name) for name in ("usedNumBlocks", "maxNumBlocks"))
        if used is not None and most:
            values["trtllm:kv_cache_usage_ratio"] = used / most
        if (queued_ms := _number(iteration, "newActiveRequestsQueueLatencyMS")) is not None:
            values["trtllm:queue_seconds_sum"] = values.get("trtllm:queue_seconds_sum", 0.0) + queued_ms / 1e3

    def _add_batch(self, iteration: Mapping[str, Any]) -> None:
        """Running are those in this iteration's batch; active ones beside them wait for memory or their turn."""
        batch = {
            name: _number(iteration, "inflightBatchingStats", f"num{name}") or 0.0
            for name in ("ScheduledRequests", "CtxTokens", "GenRequests", "PausedRequests")
        }
        active, queued = (_number(iteration, f"num{name}Requests") or 0.0 for name in ("Active", "Queued"))
        values = self._values
        values["trtllm:running_requests"] = batch["ScheduledRequests"]
        values["trtllm:waiting_requests"] = queued + max(0.0, active - batch["ScheduledRequests"])
        values["trtllm:iteration_tokens_sum"] = (
            values.get("trtllm:iteration_tokens_sum", 0.0) + batch["CtxTokens"] + batch["GenRequests"]
        )
        values["trtllm:iteration_tokens_count"] = values.get("trtllm:iteration_tokens_count", 0.0) + 1
        values["trtllm:paused_requests_total"] = values.get("trtllm:paused_requests_total", 0.0) + max(
            0.0, batch["PausedRequests"] - self._paused
        )
        self._paused = batch["PausedRequests"]


def _iterations(page: str) -> list[Mapping[str, Any]]:
    try:
        found = json.loads(page)
    except ValueError:
        return []
    return [item for item in found if isinstance(item, Mapping)] if isinstance(found, list) else []


def _number(iteration: Mapping[str, Any], *path: str) -> float | None:
    value: Any = iteration
    for key in path:
        value = value.get(key) if isinstance(value, Mapping) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
