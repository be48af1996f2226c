"""A whole level played to a stopper in order of time: what the tuner sees of it, when, and what a stop leaves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from autotune.records.trial import ClientHealth, LevelPlan, LevelRecord, RequestRecord
from autotune.slo import Stopper

EVERY_S = 0.25


@dataclass(frozen=True, kw_only=True)
class Seen:
    """A report of the load client."""

    elapsed_s: float
    phase: str
    waiting_first_token: int
    oldest_wait_s: float
    completions_5s: int


def replay(whole: LevelRecord, plan: LevelPlan, stopper: Stopper) -> LevelRecord:
    """Return the level as it is when `stopper` has had its say about it."""
    ending = sorted((r for r in whole.requests if r.done_s is not None), key=lambda r: r.done_s or 0.0)
    told = 0
    for seen in _reports(whole, plan):
        while told < len(ending) and (ending[told].done_s or 0.0) <= seen.elapsed_s:
            stopper.record(ending[told])
            told += 1
        if reason := stopper(seen):
            return stopped_at(whole, seen.elapsed_s, reason)
    return whole


def stopped_at(whole: LevelRecord, at_s: float, reason: str) -> LevelRecord:
    """Return what is left of a level that was stopped: no request after that, those in flight cut."""
    requests = tuple(_cut(r, at_s) for r in whole.requests if r.sent_s <= at_s)
    begin, end = whole.window_s
    return replace(whole, requests=requests, window_s=(min(begin, at_s), min(end, at_s)), stopped=reason)


def _cut(request: RequestRecord, at_s: float) -> RequestRecord:
    if request.done_s is not None and request.done_s <= at_s:
        return request
    chunks = tuple(chunk_s for chunk_s in request.chunk_s if chunk_s <= at_s)
    return replace(request, chunk_s=chunks, done_s=None, output_tokens=None, error="cut")


def _reports(whole: LevelRecord, plan: LevelPlan) -> Iterator[Seen]:
    for elapsed_s in np.arange(EVERY_S, plan.warmup_s + plan.duration_s, EVERY_S).tolist():
        waiting = [r for r in whole.requests if r.sent_s <= elapsed_s and not (r.chunk_s and r.chunk_s[0] <= elapsed_s)]
        yield Seen(
            elapsed_s=elapsed_s,
            phase="warmup" if elapsed_s < plan.warmup_s else "window",
            waiting_first_token=len(waiting),
            oldest_wait_s=max((elapsed_s - r.start_s for r in waiting), default=0.0),
            completions_5s=sum(elapsed_s - 5 <= (r.done_s or 0.0) <= elapsed_s for r in whole.requests),
        )


def level(
    seed: int, *, rps: float = 20.0, warmup_s: float = 2.0, duration_s: float = 40.0, memory: float = 0.7
) -> tuple[LevelRecord, LevelPlan]:
    """An open loop whose neighbours are alike: TTFT about 100 ms, then 2 s of tokens; one in 50 fails."""
    rng = np.random.default_rng(seed)
    starts = np.cumsum(rng.exponential(1 / rps, int(1.5 * rps * (warmup_s + duration_s))))
    starts = starts[starts < warmup_s + duration_s]
    noise = rng.standard_normal(len(starts))
    for i in range(1, len(noise)):
        noise[i] = memory * noise[i - 1] + (1 - memory**2) ** 0.5 * noise[i]
    requests = [
        _answer(
            index,
            start_s,
            0.1 * np.exp(0.5 * mood),
            2 * rng.gamma(2, 0.5),
            failed=rng.random() < 0.02,
            warmup_s=warmup_s,
        )
        for index, (start_s, mood) in enumerate(zip(starts.tolist(), noise.tolist(), strict=True))
    ]
    plan = LevelPlan(
        requests=(), offered_rps=rps, concurrency=None, warmup_s=warmup_s, duration_s=duration_s, seed=seed
    )
    whole = LevelRecord(
        plan_seed=seed,
        offered_rps=rps,
        concurrency=None,
        window_s=(warmup_s, warmup_s + duration_s),
        requests=tuple(requests),
        client=ClientHealth(send_lag_p99_ms=0.1, cpu_ratio=0.1),
    )
    return whole, plan


def _answer(
    index: int, start_s: float, ttft_s: float, rest_s: float, *, failed: bool, warmup_s: float
) -> RequestRecord:
    chunks = tuple((start_s + ttft_s + rest_s * np.arange(5) / 4).tolist())
    return RequestRecord(
        index=index,
        scheduled_s=start_s,
        sent_s=start_s,
        chunk_s=() if failed else chunks,
        done_s=chunks[0] if failed else chunks[-1],
        status=500 if failed else 200,
        prompt_tokens=8,
        asked_prompt_tokens=8,
        output_tokens=None if failed else 5,
        asked_output_tokens=5,
        error="HTTP 500" if failed else None,
        warmup=start_s < warmup_s,
    )
