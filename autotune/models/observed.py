"""A measured level as a simulation can replay it: the requests that were sent, and the latencies that came of them.

Measured and simulated latencies are cut in the same way, so that a level that was stopped in the middle of a growing
queue can be compared as it is: a request without its first token by then has waited for at least so long.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.models.simulation import SimResult, Trace
from autotune.records.trial import LevelRecord, RequestPlan

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

BASES = ("ttft_ms", "tpot_ms", "e2e_ms")
SPARE = 4
"""A closed loop's requests are repeated this often: the simulation may be faster than the engine was."""
_CUT = "cut"


@dataclass(frozen=True, slots=True, kw_only=True)
class Latencies:
    """Milliseconds, one entry a request; TPOT only of answers that ended and have more than one token."""

    ttft_ms: Floats
    tpot_ms: Floats
    e2e_ms: Floats

    def of(self, base: str) -> Floats:
        """The latency called `base`, one of BASES."""
        values: Floats = getattr(self, base)
        return values

    def quantiles(self, base: str, levels: Sequence[float]) -> Floats:
        """Quantiles of a latency; NaN without samples."""
        values = self.of(base)
        if not len(values):
            return np.full(len(levels), np.nan)
        found: Floats = np.quantile(values, levels, method="inverted_cdf")
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeline:
    """When requests were sent, got their first and their last token (NaN: never), and their tokens."""

    sent_s: Floats
    first_s: Floats
    finish_s: Floats
    output_tokens: NDArray[np.int64]

    def latencies(self, counted: Bools, end_s: float) -> Latencies:
        """Latencies of the `counted` requests; what came after `end_s` was not reached."""
        sent_s, first_s, finish_s = (times[counted] for times in (self.sent_s, self.first_s, self.finish_s))
        output = self.output_tokens[counted]
        begun, ended = first_s <= end_s, finish_s <= end_s
        several = ended & (output > 1)
        return Latencies(
            ttft_ms=1e3 * (np.where(begun, first_s, end_s) - sent_s),
            tpot_ms=1e3 * (finish_s - first_s)[several] / (output[several] - 1),
            e2e_ms=1e3 * (np.where(ended, finish_s, end_s) - sent_s),
        )


def timeline_of(result: SimResult) -> Timeline:
    """The requests that a simulation sent."""
    sent = slice(0, result.issued)
    return Timeline(
        sent_s=result.sent_s[sent],
        first_s=result.first_s[sent],
        finish_s=result.finish_s[sent],
        output_tokens=result.output_tokens[sent],
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedLevel:
    """`rate` is what the search moves: requests a second, or clients. All that was unfinished at `end_s` is cut there.

    `counted` marks the requests of `trace` that latencies are taken from (open loop; None: by the window).
    """

    rate: float
    concurrency: int | None
    trace: Trace
    counted: Bools | None
    window_s: tuple[float, float]
    end_s: float
    seen: Latencies
    failed_ratio: float

    def replayed(self, result: SimResult) -> Latencies:
        """The latencies of a simulation of `trace`, taken and cut as the measured ones are."""
        timeline = timeline_of(result)
        counted = _inside(timeline.sent_s, self.window_s) if self.counted is None else self.counted[: result.issued]
        return timeline.latencies(counted, self.end_s)


def observe(level: LevelRecord, plans: Sequence[RequestPlan] = ()) -> ObservedLevel:
    """Return the level for replaying. `plans`: its requests by index, where they share prefixes."""
    records = level.requests
    start_s = np.array([r.start_s for r in records])
    timeline = Timeline(
        sent_s=start_s,
        first_s=np.array([r.chunk_s[0] if r.chunk_s else np.nan for r in records]),
        finish_s=np.array([r.chunk_s[-1] if r.chunk_s and r.error is None else np.nan for r in records]),
        output_tokens=np.array([r.output_tokens or r.asked_output_tokens for r in records], dtype=np.int64),
    )
    failed = np.array([r.error not in {None, _CUT} for r in records], dtype=np.bool_)
    inside = _inside(start_s, level.window_s)
    end_s = max([level.window_s[1], *(r.done_s or (r.chunk_s[-1] if r.chunk_s else r.sent_s) for r in records)])
    groups = {plan.index: (plan.prefix_group, plan.prefix_tokens) for plan in plans}
    prefix = np.array([groups.get(r.index, (-1, 0)) for r in records], dtype=np.int64).reshape(-1, 2)
    prompt = np.array([r.prompt_tokens or r.asked_prompt_tokens or 1 for r in records], dtype=np.int64)
    times = 1 if level.concurrency is None else SPARE
    return ObservedLevel(
        rate=float(level.offered_rps or level.concurrency or 0.0),
        concurrency=level.concurrency,
        trace=Trace(
            arrival_s=start_s if level.concurrency is None else np.zeros(times * len(records)),
            prompt_tokens=np.tile(prompt, times),
            output_tokens=np.tile(timeline.output_tokens, times),
            prefix_group=np.tile(prefix[:, 0], times),
            prefix_tokens=np.tile(prefix[:, 1], times),
        ),
        counted=inside & ~failed if level.concurrency is None else None,
        window_s=level.window_s,
        end_s=end_s,
        seen=timeline.latencies(inside & ~failed, end_s),
        failed_ratio=float(failed[inside].mean()) if inside.any() else 0.0,
    )


def _inside(times_s: Floats, window_s: tuple[float, float]) -> Bools:
    inside: Bools = (times_s >= window_s[0]) & (times_s < window_s[1])
    return inside
