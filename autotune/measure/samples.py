"""Which requests of a level count, and what their latencies are, in the order of time that the intervals rely on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.records.trial import LevelRecord, RequestRecord

CUT = "cut"
"""The error of a request that the client ended, at the end of the drain or because the level was stopped."""

Series = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Samples:
    """The requests that started inside the window, warm-up left out, by start; `end_s` is the last instant seen."""

    started: tuple[RequestRecord, ...]
    end_s: float

    @property
    def succeeded(self) -> list[RequestRecord]:
        """Requests with a proper answer: the only ones that latencies are taken from."""
        return [r for r in self.started if r.error is None]

    @property
    def failed(self) -> list[RequestRecord]:
        """Requests that the server failed. Those that the client cut are neither a success nor an error."""
        return [r for r in self.started if r.error not in {None, CUT}]

    @property
    def cut(self) -> list[RequestRecord]:
        """Requests without an outcome: censored."""
        return [r for r in self.started if r.error == CUT]


def select(level: LevelRecord) -> Samples:
    """Return the level's samples: not warm-up, and window start <= start < window end."""
    begin, end = level.window_s
    inside = (r for r in level.requests if not r.warmup and begin <= r.start_s < end)
    started = tuple(sorted(inside, key=lambda r: (r.start_s, r.index)))
    return Samples(started=started, end_s=max((_last_seen_s(r) for r in level.requests), default=end))


def latencies(requests: Iterable[RequestRecord], base: str) -> Series:
    """Return a latency (`ttft_ms`, `tpot_ms`, `e2e_ms`: one a request; `itl_ms`: one a gap) in order of time, in ms."""
    if base == "itl_ms":
        return gaps(requests)
    values = (getattr(r, base) for r in requests)
    return np.array([v for v in values if v is not None], dtype=np.float64)


def gaps(requests: Iterable[RequestRecord]) -> Series:
    """Return the gaps between chunks, per token, in the order in which they ended across all requests."""
    several = [r for r in requests if len(r.chunk_s) > 1]
    if not several:
        return np.array([], dtype=np.float64)
    at_s = np.concatenate([np.array(r.chunk_s[1:]) for r in several])
    gap_ms = np.concatenate([np.array(r.itl_ms) for r in several])
    return gap_ms[np.lexsort((gap_ms, at_s))]


def _last_seen_s(request: RequestRecord) -> float:
    return max(request.sent_s, request.done_s or 0.0, request.chunk_s[-1] if request.chunk_s else 0.0)
