"""A whole trace through the scheduler in virtual time: what the quickstart, the capacity twin and the prior run on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from autotune.models import kernel as k
from autotune.models.compiled import compile_kernel
from autotune.models.config import SchedulerConfig
from autotune.models.memory import plan_memory
from autotune.models.steptime import HOST, HostCosts, costs_of, limits_of

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
NEVER_S = 1e18
FIRST_LOG_STEPS = 1 << 20  # a step log this long costs nothing until used; longer runs start over with a longer one
NOISE_LENGTH = 4096  # jitter is drawn once and repeats; longer than any stretch that a level's quantiles look at


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival: seconds, tokens, and the prefix group (-1: none) of the first tokens."""

    arrival_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    prefix_group: Ints
    prefix_tokens: Ints

    def at_rate(self, factor: float) -> Trace:
        """The same requests arriving `factor` times as fast."""
        return Trace(
            arrival_s=self.arrival_s / factor,
            prompt_tokens=self.prompt_tokens,
            output_tokens=self.output_tokens,
            prefix_group=self.prefix_group,
            prefix_tokens=self.prefix_tokens,
        )


def trace_of(
    prompt_tokens: ArrayLike,
    output_tokens: ArrayLike,
    arrival_s: ArrayLike = 0.0,
    prefix_group: ArrayLike = -1,
    prefix_tokens: ArrayLike = 0,
) -> Trace:
    """Build a trace from arrays or single numbers, which stand for every request."""
    prompt = np.atleast_1d(np.asarray(prompt_tokens, dtype=np.int64))

    def ints(value: ArrayLike) -> Ints:
        return np.ascontiguousarray(np.broadcast_to(np.asarray(value, dtype=np.int64), prompt.shape))

    return Trace(
        arrival_s=np.ascontiguousarray(np.broadcast_to(np.asarray(arrival_s, dtype=np.float64), prompt.shape)),
        prompt_tokens=prompt,
        output_tokens=ints(output_tokens),
        prefix_group=ints(prefix_group),
        prefix_tokens=ints(prefix_tokens),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """Stop a simulation as soon as more than `allowed` requests are certain to miss a latency limit."""

    ttft_s: float = NEVER_S
    tpot_s: float = NEVER_S
    allowed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SimResult:
    """What came of a trace, by request: sent, ready (behind the API server), admitted, prefilled, first token, finish
    (NaN: not reached), and counts of the run.

    `issued` counts the requests that were sent: a closed loop may end before the last. `stuck`: the first of the queue
    could never be admitted. `token_times` gives every token.
    """

    sent_s: Floats
    ready_s: Floats
    admitted_s: Floats
    prefilled_s: Floats
    first_s: Floats
    finish_s: Floats
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    preempted: Ints
    issued: int
    end_s: float
    busy_s: float
    steps: int
    preemptions: int
    produced_tokens: int
    queried_tokens: int
    hit_tokens: int
    kv_peak_ratio: float
    missed: int
    stuck: bool
    free_blocks: int
    _step_end_s: Floats
    _stints: tuple[Ints, Ints, Ints]

    @property
    def ttft_s(self) -> Floats:
        """Seconds from sending to the first token."""
        return self.first_s - self.sent_s

    @property
    def tpot_s(self) -> Floats:
        """Seconds between tokens after the first; NaN for requests of one token."""
        gaps = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        tpot: Floats = (self.finish_s - self.first_s) / gaps
        return tpot

    def token_times(self) -> list[Floats]:
        """The times at which each request's tokens reached its client; empty without `keep_tokens`."""
        ids, firsts, counts = self._stints
        parts: list[list[Floats]] = [[] for _ in self.sent_s]
        for request, first, count in zip(ids.tolist(), firsts.tolist(), counts.tolist(), strict=True):
            parts[request].append(self._step_end_s[first : first + count])
        return [np.concatenate(p) if p else np.empty(0) for p in parts]


def simulate(
    trace: Trace,
    config: SchedulerConfig,
    *,
    concurrency: int | None = None,
    last_start_s: float = NEVER_S,
    end_s: float = NEVER_S,
    limit: Limit | None = None,
    keep_tokens: bool = False,
    blocks: int | None = None,
    seed: int = 0,
    noise_ratio: float = 0.0,
    speed: float = 1.0,
    host: HostCosts = HOST,
    compiled: bool = True,
    physics: tuple[Callable[..., int], Any] | None = None,
) -> SimResult:
    """Simulate `trace` on `config`; the same arguments give the same result, compiled or not.

    Open loop at the trace's arrivals, or closed with `concurrency` requests at a time, none sent after `last_start_s`;
    everything is cut at `end_s`. `blocks` overrides the KV blocks that fit, `noise_ratio` is the standard deviation of
    a step's time, `speed` > 1 a faster GPU. `physics`: a kernel with another step time, and the costs that it takes in
    the place of `host` and `speed`. Raises ValueError when a request exceeds max_model_len.
    """
    _check(trace, config)
    usable = plan_memory(config).blocks if blocks is None else blocks
    limits = limits_of(config, usable)
    kernel: Callable[..., int] = compile_kernel()["simulate"] if compiled else k.simulate
    costs: Any = costs_of(config, host, speed)
    if physics is not None:
        kernel, costs = physics
    run = k.Run(
        concurrency=concurrency or 0,
        last_start_s=last_start_s,
        end_s=end_s,
        ttft_limit_s=limit.ttft_s if limit else NEVER_S,
        tpot_limit_s=limit.tpot_s if limit else NEVER_S,
        allowed=limit.allowed if limit else -1,
    )
    jitter = _jitter(seed, noise_ratio)
    length = FIRST_LOG_STEPS if keep_tokens else 0
    while True:
        state, log = _state(trace, config, limits), _log(len(trace.prompt_tokens), length)
        missed = kernel(state, limits, costs, log, jitter, run)
        if not keep_tokens or (state.n[k.STEPS] < length and state.n[k.STINTS] <= len(log.stint_id)):
            return _result(trace, state, limits, log, int(missed))
        length *= 4


def _check(trace: Trace, config: SchedulerConfig) -> None:
    longest = int(np.max(trace.prompt_tokens + trace.output_tokens, initial=0))
    if longest > config.max_model_len:
        raise ValueError(f"a request of {longest} tokens exceeds max_model_len ({config.max_model_len})")
    if np.min(trace.prompt_tokens, initial=1) < 1 or np.min(trace.output_tokens, initial=1) < 1:
        raise ValueError("every request needs at least one prompt token and one output token")


def _jitter(seed: int, noise_ratio: float) -> Floats:
    if noise_ratio == 0.0:
        return np.ones(1)
    drawn = np.random.default_rng(seed).normal(1.0, noise_ratio, NOISE_LENGTH)
    return np.maximum(drawn, 0.5)


def _records(kind: type, count: int) -> NDArray[np.void]:
    """Zeroed records with the fields of a dataclass of int and float."""
    return np.zeros(count, dtype=np.dtype([(field.name, str(field.type)) for field in fields(kind)]))


def _state(trace: Trace, config: SchedulerConfig, limits: k.Limits) -> k.State:
    """Arrays and records for the compiled kernel, or for the plain one (numpy records have attributes, too)."""
    request = _records(k.Request, len(trace.prompt_tokens))
    request["arrival"] = trace.arrival_s
    request["prompt"] = trace.prompt_tokens
    request["output"] = trace.output_tokens
    request["group"] = np.where(trace.prefix_tokens > 0, trace.prefix_group, -1)  # who shares nothing holds nothing
    request["prefix"] = np.minimum(trace.prefix_tokens, trace.prompt_tokens)
    request["admitted_s"] = request["prefilled_s"] = request["first_s"] = request["finish_s"] = np.nan
    counters = np.zeros(k.COUNTERS, dtype=np.int64)
    counters[[k.RUN_HEAD, k.RUN_TAIL, k.WAIT_HEAD, k.WAIT_TAIL]] = -1
    counters[k.FREE] = limits.blocks
    arrays: dict[str, Any] = {
        "req": request.view(np.recarray),
        "groups": _records(k.Group, int(np.max(trace.prefix_group, initial=-1)) + 1).view(np.recarray),
        "prefilling": np.zeros(config.max_num_seqs, dtype=np.int64),
        "phase": np.zeros(config.block_size, dtype=np.int64),
        "bucket": np.full(limits.ring, -1, dtype=np.int64),
        "ended": np.zeros(config.max_num_seqs, dtype=np.int64),
        "evicted": np.zeros(config.max_num_seqs, dtype=np.int64),
        "n": counters,
        "t": np.zeros(k.TIMES),
    }
    return k.State(**arrays)


def _log(requests: int, steps: int) -> k.Log:
    """Room for `steps` steps and the stints they can hold; both 0 when tokens are not kept."""
    stints = min(2 * requests + steps // 4, steps)
    arrays: dict[str, Any] = {
        "end_s": np.empty(steps),
        "stint_id": np.empty(stints, dtype=np.int64),
        "stint_first": np.empty(stints, dtype=np.int64),
        "stint_count": np.empty(stints, dtype=np.int64),
    }
    return k.Log(**arrays)


def _result(trace: Trace, s: Any, limits: k.Limits, log: Any, missed: int) -> SimResult:  # noqa: ANN401 - numpy inside
    n = {name: int(s.n[getattr(k, name)]) for name in ("STEPS", "PREEMPTIONS", "TOKENS", "QUERIED", "HIT", "FREE")}
    stints = min(int(s.n[k.STINTS]), len(log.stint_id))
    idle = s.n[k.DECODING] + s.n[k.PREFILLING] == 0
    return SimResult(
        sent_s=s.req.arrival,
        ready_s=s.req.ready,
        admitted_s=s.req.admitted_s,
        prefilled_s=s.req.prefilled_s,
        first_s=s.req.first_s,
        finish_s=s.req.finish_s,
        prompt_tokens=trace.prompt_tokens,
        output_tokens=trace.output_tokens,
        cached_tokens=s.req.cached,
        preempted=s.req.preempted,
        issued=int(s.n[k.ISSUED]),
        end_s=float(s.t[k.DELIVERED]),
        busy_s=float(s.t[k.BUSY]),
        steps=n["STEPS"],
        preemptions=n["PREEMPTIONS"],
        produced_tokens=n["TOKENS"],
        queried_tokens=n["QUERIED"],
        hit_tokens=n["HIT"],
        kv_peak_ratio=float(s.n[k.PEAK]) / limits.blocks if limits.blocks else 0.0,
        missed=missed,
        stuck=bool(idle and s.n[k.WAITING_N] > 0),
        free_blocks=n["FREE"],
        _step_end_s=log.end_s[: n["STEPS"]],
        _stints=(log.stint_id[:stints], log.stint_first[:stints], log.stint_count[:stints]),
    )
