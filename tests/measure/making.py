"""Requests and levels with the few fields that a test is about."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from autotune.records.trial import ClientHealth, LevelRecord, RequestRecord

WINDOW_S = (10.0, 70.0)


def request(
    index: int = 0, start_s: float = 20.0, chunk_s: Sequence[float] | None = None, **fields: Any
) -> RequestRecord:
    """A success of three tokens: first after 0.1 s, then one every 20 ms."""
    chunks = tuple(start_s + offset for offset in ((0.1, 0.12, 0.14) if chunk_s is None else chunk_s))
    usual: dict[str, Any] = {
        "scheduled_s": start_s,
        "sent_s": start_s,
        "done_s": chunks[-1] if chunks else start_s + 0.1,
        "status": 200,
        "prompt_tokens": 8,
        "asked_prompt_tokens": 8,
        "output_tokens": len(chunks),
        "asked_output_tokens": len(chunks),
    }
    return RequestRecord(index=index, chunk_s=chunks, **(usual | fields))


def level(requests: Iterable[RequestRecord], **fields: Any) -> LevelRecord:
    usual: dict[str, Any] = {
        "plan_seed": 1,
        "offered_rps": 10.0,
        "concurrency": None,
        "window_s": WINDOW_S,
        "client": ClientHealth(send_lag_p99_ms=0.1, cpu_ratio=0.1),
    }
    return LevelRecord(requests=tuple(requests), **(usual | fields))


def steady(n: int = 240, span_s: float = 60.0, **fields: Any) -> list[RequestRecord]:
    """Requests at even distances over the window."""
    return [request(i, WINDOW_S[0] + i * span_s / n, **fields) for i in range(n)]
