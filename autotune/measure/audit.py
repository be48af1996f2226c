"""Why a level should not be trusted: each check gives one line with the numbers, or nothing."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.measure.samples import Samples
from autotune.records.trial import ClientHealth, LevelRecord, RequestRecord

CLIENT_LIMITED = "client limited: "
"""How a doubt begins that is about the load client, not the server."""

SEND_LAG_P99_MS = 5.0
"""Open loop: beyond this the client, not the server, shapes the arrivals: a tenth of a tight TTFT limit."""

SEND_LAG_TO_E2E_RATIO = 0.05
"""Closed loop: latency counts from the sending, so a late client only leaves its slot idle. Idle for this share of the
median E2E, and throughput is understated by as much."""

CPU_RATIO = 0.7
"""A client core busier than this delays what it times."""

MISMATCH_RATIO = 0.01
"""Share of requests that may differ from what was asked before the workload is another one."""

FEW_REQUESTS = 20
"""Below this even a median has no useful interval."""


def doubts(level: LevelRecord, samples: Samples) -> Iterator[str]:
    """Yield the reasons to distrust the level; none when all fits."""
    yield from _lag(level, samples)
    yield from _busy(level.client)
    yield from _lengths(samples.succeeded)
    yield from _outcomes(level, samples)


def _lag(level: LevelRecord, samples: Samples) -> Iterator[str]:
    lag_ms, limit_ms = level.client.send_lag_p99_ms, SEND_LAG_P99_MS
    latencies_ms = sorted(e2e for r in samples.succeeded if (e2e := r.e2e_ms) is not None)
    if level.offered_rps is None and latencies_ms:
        limit_ms = max(limit_ms, SEND_LAG_TO_E2E_RATIO * latencies_ms[len(latencies_ms) // 2])
    if lag_ms is not None and lag_ms > limit_ms:
        yield f"{CLIENT_LIMITED}p99 send lag {lag_ms:.1f} ms > {limit_ms:.3g} ms"


def _busy(client: ClientHealth) -> Iterator[str]:
    if client.cpu_ratio is not None and client.cpu_ratio > CPU_RATIO:
        yield f"{CLIENT_LIMITED}its core was {client.cpu_ratio:.0%} busy > {CPU_RATIO:.0%}"


def _lengths(requests: list[RequestRecord]) -> Iterator[str]:
    """Lengths are only asked for exactly where the prompt is synthetic; a dataset's `max_tokens` is just a cap."""
    uncounted = sum(r.output_tokens is None for r in requests)
    if uncounted:
        yield f"the server gave no usage for {uncounted} of {len(requests)} answers: token counts are guesses"
    fixed = [r for r in requests if r.asked_prompt_tokens is not None]
    short = sum(r.output_tokens not in {None, r.asked_output_tokens} for r in fixed)
    if short > MISMATCH_RATIO * len(fixed):
        yield f"{short} of {len(fixed)} answers have another length than asked: does the server honour ignore_eos?"
    other = sum(r.prompt_tokens not in {None, r.asked_prompt_tokens} for r in fixed)
    if other > MISMATCH_RATIO * len(fixed):
        yield f"{other} of {len(fixed)} prompts have another length by the server's count than was sent"


def _outcomes(level: LevelRecord, samples: Samples) -> Iterator[str]:
    succeeded, cut = len(samples.succeeded), len(samples.cut)
    if succeeded < FEW_REQUESTS:
        yield f"too few requests: {succeeded} succeeded in the window, {FEW_REQUESTS} are the least"
    if level.stopped is None and cut > MISMATCH_RATIO * len(samples.started):
        yield f"{cut} of {len(samples.started)} requests were cut at the end of the drain: latencies miss the slowest"
