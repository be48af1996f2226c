"""A level of load in virtual time: a plan in, a record out that looks like a real client's, no socket between them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

import numpy as np

from autotune.engines.simulated.virtual_metrics import telemetry
from autotune.models.config import SchedulerConfig
from autotune.models.simulation import SimResult, Trace, simulate, trace_of
from autotune.records.trial import ClientHealth, LevelPlan, LevelRecord, RequestPlan, RequestRecord

LAUNCH_NOISE, LEVEL_NOISE, STEP_NOISE = 0.025, 0.015, 0.03
"""Standard deviations of the speed of launches and of levels in one launch (3 % together), and of a step's time.

Real launches of one configuration differ more than repeats inside one launch do.
"""

CHARS_PER_TOKEN = 4  # of English text: for messages, whose tokens only a server can count
CUT = "cut"
FIRST_TAKE = 8  # of a closed loop's requests per slot


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One simulated launch: its configuration and the seed of all that varies between equal launches."""

    config: SchedulerConfig
    seed: int

    @property
    def speed(self) -> float:
        """How fast this launch is, 1 being the model's expectation."""
        return _factor(self.seed, LAUNCH_NOISE)


def seed_of(*parts: object) -> int:
    """A seed that depends on all `parts`."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:4])


def run_level(launch: Launch, plan: LevelPlan, index: int) -> tuple[LevelRecord, SimResult]:
    """Simulate level number `index` of a launch: the record, and the counters behind it.

    A closed loop's requests have no end, so ever more of them are taken until the window ends before they do.
    """
    taken: list[RequestPlan] = []
    wanted = len(plan.requests) if plan.concurrency is None else FIRST_TAKE * plan.concurrency
    while True:
        wanted = min(wanted, len(plan.requests))
        taken += [_without_prompt(plan.requests[i]) for i in range(len(taken), wanted)]
        sent = [r for r in taken if (r.at_s or 0.0) < plan.warmup_s + plan.duration_s]
        fitting = [r for r in sent if _fits(r, launch.config)]
        result = _simulate(launch, plan, fitting, seed_of(launch.seed, plan.seed, index))
        if plan.concurrency is None or result.issued < len(fitting) or wanted == len(plan.requests):
            break
        wanted *= 2
    last = fitting[result.issued - 1].index if result.issued else -1
    refused = [r for r in sent if not _fits(r, launch.config) and (plan.concurrency is None or r.index < last)]
    answers = _answers(fitting, result, plan, launch.config.stream_interval)
    level = _level(plan, [*answers, *_refusals(refused, plan, launch.config.max_model_len)])
    return replace(level, telemetry=telemetry(result, launch.config, plan.warmup_s + plan.duration_s)), result


def _without_prompt(request: RequestPlan) -> RequestPlan:
    """Keep the count of a prompt's tokens, drop the tokens: a long level would fill the memory with them."""
    return replace(request, prompt_tokens=_prompt_tokens(request), prompt_ids=None, messages=None)


def _fits(request: RequestPlan, config: SchedulerConfig) -> bool:
    return _prompt_tokens(request) + request.output_tokens <= config.max_model_len


def _simulate(launch: Launch, plan: LevelPlan, requests: list[RequestPlan], seed: int) -> SimResult:
    window_end_s = plan.warmup_s + plan.duration_s
    return simulate(
        _trace(requests),
        launch.config,
        concurrency=plan.concurrency,
        last_start_s=window_end_s,
        end_s=window_end_s + plan.drain_s,
        keep_tokens=True,
        seed=seed,
        noise_ratio=STEP_NOISE,
        speed=launch.speed * _factor(seed, LEVEL_NOISE),
    )


def _factor(seed: int, deviation: float) -> float:
    return float(np.exp(np.random.default_rng(seed).normal(0.0, deviation)))


def _prompt_tokens(request: RequestPlan) -> int:
    if request.prompt_tokens is not None:
        return request.prompt_tokens
    if request.prompt_ids is not None:
        return len(request.prompt_ids)
    return max(1, sum(len(str(m.get("content", ""))) for m in request.messages or ()) // CHARS_PER_TOKEN)


def _trace(requests: list[RequestPlan]) -> Trace:
    return trace_of(
        [_prompt_tokens(r) for r in requests],
        [r.output_tokens for r in requests],
        [r.at_s or 0.0 for r in requests],
        [r.prefix_group for r in requests],
        [r.prefix_tokens for r in requests],
    )


def _answers(requests: list[RequestPlan], result: SimResult, plan: LevelPlan, interval: int) -> list[RequestRecord]:
    """Records of the requests that were sent; a closed loop may not come to its last ones."""
    times = result.token_times()
    records = []
    for i, request in enumerate(requests[: result.issued]):
        token_s = times[i].tolist() or _first(result, i)
        begun = _begun(request, float(result.sent_s[i]), _chunks(token_s, interval), plan.warmup_s)
        whole = len(token_s) == request.output_tokens
        records.append(_finished(begun, int(result.cached_tokens[i])) if whole else replace(begun, error=CUT))
    return records


def _first(result: SimResult, i: int) -> list[float]:
    """Tokens are logged when a request leaves the engine: of one cut while it decodes only the first is known."""
    first_s = float(result.first_s[i])
    return [] if np.isnan(first_s) else [first_s]


def _chunks(token_s: list[float], interval: int) -> tuple[float, ...]:
    """Arrivals of a stream that sends the first token at once, then `interval` at a time, and the rest at its end."""
    if interval == 1 or len(token_s) < 2:
        return tuple(token_s)
    sent = token_s[::interval]
    return tuple(sent if (len(token_s) - 1) % interval == 0 else [*sent, token_s[-1]])


def _begun(request: RequestPlan, sent_s: float, chunk_s: tuple[float, ...], warmup_s: float) -> RequestRecord:
    return RequestRecord(
        index=request.index,
        scheduled_s=request.at_s,
        sent_s=sent_s,
        chunk_s=chunk_s,
        status=200 if chunk_s else None,
        shared_tokens=request.prefix_tokens,
        asked_prompt_tokens=request.prompt_tokens,
        asked_output_tokens=request.output_tokens,
        warmup=sent_s < warmup_s,
    )


def _finished(record: RequestRecord, cached_tokens: int) -> RequestRecord:
    """The record of an answer that came to its end, with the server's counts."""
    return replace(
        record,
        prompt_tokens=record.asked_prompt_tokens,
        output_tokens=record.asked_output_tokens,
        cached_tokens=cached_tokens,
        finish_reason="length",
        done_s=record.chunk_s[-1],
    )


def _refusals(requests: list[RequestPlan], plan: LevelPlan, max_model_len: int) -> list[RequestRecord]:
    """Requests longer than the engine takes: an error 400 at once."""
    return [
        RequestRecord(
            index=request.index,
            scheduled_s=request.at_s,
            sent_s=request.at_s or 0.0,
            done_s=request.at_s or 0.0,
            status=400,
            asked_prompt_tokens=request.prompt_tokens,
            asked_output_tokens=request.output_tokens,
            error=f"HTTP 400: prompt and output exceed the maximum model length of {max_model_len} tokens",
            warmup=(request.at_s or 0.0) < plan.warmup_s,
        )
        for request in requests
    ]


def _level(plan: LevelPlan, records: list[RequestRecord]) -> LevelRecord:
    return LevelRecord(
        plan_seed=plan.seed,
        offered_rps=plan.offered_rps,
        concurrency=plan.concurrency,
        window_s=(plan.warmup_s, plan.warmup_s + plan.duration_s),
        requests=tuple(sorted(records, key=lambda r: r.index)),
        client=ClientHealth(send_lag_p99_ms=0.0, cpu_ratio=0.0),
        notes=plan.notes,
    )
