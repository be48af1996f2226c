"""Ends a level that the engine can't keep up with: such a level fails, and its queue would only grow.

Three rules, chosen since on simulated engines they found nearly every overload at 1.5 times the capacity within half a
minute and hardly ever spoke at 0.9 times it. (Trend tests on the number of requests in flight give false alarms: below
capacity it is a random walk.)

1. The queue for the first token takes more than twice the TTFT limit to clear, for 5 s on end.
2. The mean TPOT of the answers that ended in the last 10 s exceeds the TPOT limit.
3. Violations exceed three times those that an SLO allows in the whole level, and 10. A TTFT violates as soon as it has
   waited for longer than the limit, though its request has not ended.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from statistics import fmean
from typing import Protocol

from autotune.records.metrics import parse_metric
from autotune.records.spec import Bound, ObjectiveSpec, Slo
from autotune.records.trial import OVERLOAD, RequestRecord
from autotune.slo.sequential import allowed_share

QUEUE_LIMITS = 2.0
QUEUE_LASTS_S = 5.0
RATE_SPAN_S = 5.0
TPOT_SPAN_S = 10.0
VIOLATIONS_TIMES = 3.0
LEAST = 10
"""Answers or violations that a rule wants before it speaks."""

SAME_START_S = 0.005
"""Two starts nearer than this are taken for one request's: what a closed loop's slot waits for a client."""

CUT = "cut"  # the error of requests that the client ended itself
_BY_REQUEST = ("ttft_ms", "tpot_ms", "e2e_ms")


class Progress(Protocol):
    """What the guard looks at of a level while it runs: seconds on its own clock, phase `window` while it measures."""

    @property
    def elapsed_s(self) -> float:
        """Since the level began."""

    @property
    def phase(self) -> str:
        """`warmup`, `window` or `drain`."""

    @property
    def waiting_first_token(self) -> int:
        """Requests sent that have no token yet."""

    @property
    def oldest_wait_s(self) -> float:
        """How long the oldest of these has waited, 0 when none does."""

    @property
    def completions_5s(self) -> int:
        """Requests that ended in the last five seconds."""


def overload_guard(objective: ObjectiveSpec, planned: int | None = None) -> OverloadGuard:
    """Return the guard of one level. `planned`: how many requests its window will send, None when that isn't known."""
    return OverloadGuard(slos=tuple(slo for slo in objective.slos if slo.bound is Bound.MAX), planned=planned)


def overload_of(stopped: str | None, metric: str) -> str | None:
    """Return the reason by which the guard found an SLO's metric overloaded, None when it didn't."""
    return stopped if stopped is not None and stopped.startswith(f"{OVERLOAD}{metric}: ") else None


@dataclass(slots=True)
class OverloadGuard:
    """Give it every record (`record`), call it every half second or oftener: the reason to stop the level, or None.

    It keeps a state, so each level needs a guard of its own. It speaks only inside the window of measurement.
    """

    slos: tuple[Slo, ...]
    planned: int | None
    _queued_since_s: float | None = None
    _violated: Counter[str] = field(default_factory=Counter)
    _late: set[tuple[str, float]] = field(default_factory=set)
    """(SLO, start) of requests that were seen to wait too long for their first token and have not ended."""
    _window_from_s: float | None = None
    _recent: deque[RequestRecord] = field(default_factory=deque)

    def record(self, request: RequestRecord) -> None:
        """Take note of a request that ended."""
        if request.warmup or request.error == CUT:
            return
        self._late -= {(metric, at_s) for metric, at_s in self._late if abs(at_s - request.start_s) < SAME_START_S}
        self._violated.update(slo.metric for slo in self.slos if _violates(request, slo))
        if request.error is None:
            self._recent.append(request)

    def __call__(self, progress: Progress) -> str | None:
        """Return the reason to stop the level, or None."""
        if progress.phase != "window":
            return None
        self._watch_the_oldest(progress)
        reasons = (self._queue(progress), self._slow(progress), self._violations())
        return next((f"{OVERLOAD}{reason}" for reason in reasons if reason), None)

    def _queue(self, progress: Progress) -> str | None:
        slo, waiting = next(self._on("ttft_ms"), None), progress.waiting_first_token
        rate_rps = progress.completions_5s / RATE_SPAN_S
        wait_s = waiting / rate_rps if rate_rps else progress.oldest_wait_s
        if slo is None or wait_s <= QUEUE_LIMITS * slo.limit / 1e3:
            self._queued_since_s = None
            return None
        if self._queued_since_s is None:
            self._queued_since_s = progress.elapsed_s
        if progress.elapsed_s - self._queued_since_s < QUEUE_LASTS_S:
            return None
        return f"{slo.metric}: {waiting} requests wait for their first token, {wait_s:.1f} s of work"

    def _slow(self, progress: Progress) -> str | None:
        while self._recent and (self._recent[0].done_s or 0.0) < progress.elapsed_s - TPOT_SPAN_S:
            self._recent.popleft()
        slo, times = next(self._on("tpot_ms"), None), [t for r in self._recent if (t := r.tpot_ms) is not None]
        if slo is None or len(times) < LEAST or (mean_ms := fmean(times)) <= slo.limit:
            return None
        return f"{slo.metric}: mean of the last {TPOT_SPAN_S:g} s {mean_ms:.4g} ms, the limit is {slo.limit:g} ms"

    def _watch_the_oldest(self, progress: Progress) -> None:
        """Of those that wait only the oldest is told; reports come so often that most are it in one of them."""
        self._window_from_s = progress.elapsed_s if self._window_from_s is None else self._window_from_s
        start_s = progress.elapsed_s - progress.oldest_wait_s
        if start_s < self._window_from_s:
            return
        for slo in self._on("ttft_ms"):
            seen = any(m == slo.metric and abs(at_s - start_s) < SAME_START_S for m, at_s in self._late)
            if progress.oldest_wait_s * 1e3 > slo.limit and not seen:
                self._late.add((slo.metric, start_s))

    def _violations(self) -> str | None:
        for slo in self.slos:
            share = allowed_share(slo)
            if share is None or self.planned is None:
                continue
            count = self._violated[slo.metric] + sum(metric == slo.metric for metric, _ in self._late)
            if count > max(LEAST, VIOLATIONS_TIMES * share * self.planned):
                return f"{slo.metric}: {count} violations already, of about {self.planned} requests in all"
        return None

    def _on(self, base: str) -> Iterator[Slo]:
        return (slo for slo in self.slos if slo.metric.startswith(f"{base}."))


def _violates(request: RequestRecord, slo: Slo) -> bool:
    """By what the request as a whole tells: gaps between tokens are left to the judge."""
    metric = parse_metric(slo.metric)
    if request.error is not None or metric is None or metric.base not in _BY_REQUEST:
        return request.error is not None
    value: float | None = getattr(request, metric.base)
    return value is not None and value > slo.limit
