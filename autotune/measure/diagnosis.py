"""Why an SLO was missed: what took the time, by the figures of client, engine and GPUs, and which parameters move it.

A verdict and its measurements come in; one line of evidence goes out. It is a hint for people and learns nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.measure.audit import CLIENT_LIMITED
from autotune.measure.levers import PARAMETERS, Limit
from autotune.records.spec import EngineKind
from autotune.records.trial import OVERLOAD, Diagnosis, Measurement, Ruling, SloRuling, Verdict

PREEMPTED_RATIO = 0.02
"""Preemptions per request from which on recomputing them shows in a p99 (1 %) with certainty."""

KV_FULL_RATIO = 0.9
"""KV cache use at which the next long prompt has to wait; sampled once a second, so its peaks lie above it."""

SLOTS_RATIO = 0.95
"""Of max_num_seqs: as many requests running leave the queue no slot, seen from samples once a second."""

SPIKY_RATIO, SPIKY_MEAN_RATIO = 2.5, 1.25
"""ITL p99 and mean over the median: gaps so long, and so many of them, that they are no noise of a decode step."""

COMMUNICATION_RATIO = 0.3
"""Share of a decode step that the all-reduces take from which on they are what to change first."""

FULL_STEPS_RATIO = 0.8
"""Of the token budget: mean steps that full are prefills one after the other, and whoever queues waits for those."""

_SLOTS = ("max_num_seqs", "max_batch_size")
_BUDGET = ("max_num_batched_tokens", "max_num_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """A missed SLO and what is known of its level."""

    slo: SloRuling
    level: Measurement
    resolved: Mapping[str, Any]
    communication_ratio: float | None

    def counter(self, name: str) -> float:
        """An audit figure; 0 where the engine didn't tell."""
        return self.level.counters.get(name, 0.0)

    def setting(self, names: tuple[str, ...]) -> int | None:
        """The first of `names` that the engine runs with; None where it is not known."""
        return next((value for name in names if isinstance(value := self.resolved.get(name), int)), None)

    def value(self, metric: str) -> float | None:
        """A figure of the level."""
        estimate = self.level.values.get(metric)
        return None if estimate is None else estimate.value


Finding = tuple[Limit, str]


def diagnose(
    verdict: Verdict,
    measurements: Sequence[Measurement],
    *,
    engine: EngineKind,
    resolved: Mapping[str, Any],
    communication_ratio: float | None = None,
) -> Diagnosis | None:
    """Return what limited the SLO that was missed by most, in the level that missed it by most; None when none was.

    `resolved` are the settings that the engine ran with; `communication_ratio` is the share of a decode step that is
    spent between GPUs, as a model has it (it can't be measured from outside), None where there is none.
    """
    missed = [slo for slo in verdict.slos if slo.ruling is Ruling.FAIL]
    if not missed or not measurements:
        return None
    slo = max(missed, key=lambda slo: -1.0 if slo.excess is None else slo.excess)
    case = _Case(slo=slo, level=_worst(slo, measurements), resolved=resolved, communication_ratio=communication_ratio)
    limit, evidence = next(_causes(case), (Limit.UNKNOWN, "the engine tells too little to say why"))
    return Diagnosis(
        limit=limit.value,
        evidence=f"{slo.metric}: {evidence}",
        parameters=PARAMETERS.get(engine, {}).get(limit, ()),
    )


def _worst(slo: SloRuling, measurements: Sequence[Measurement]) -> Measurement:
    """The level in which the metric lies furthest out; the last of those without it."""
    sign = 1.0 if slo.bound == "max" else -1.0
    known = [m for m in measurements if slo.metric in m.values]
    return max(known, key=lambda m: sign * m.values[slo.metric].value, default=measurements[-1])


def _causes(case: _Case) -> Iterator[Finding]:
    """Causes in the order in which they exclude each other; the first counts."""
    yield from _client(case)
    if case.slo.metric == "error_ratio":
        yield Limit.ERRORS, f"{case.level.errors} of {case.level.requests} requests failed"
    yield from _preempted(case)
    base = case.slo.metric.partition(".")[0]
    if base == "ttft_ms":
        yield from _first_token(case)
    elif base in {"tpot_ms", "itl_ms"}:
        yield from _next_tokens(case)
    else:  # the whole answer, or a rate: by what took most of its time
        yield from _whole(case)


def _client(case: _Case) -> Iterator[Finding]:
    for reason in case.level.untrusted:
        if reason.startswith(CLIENT_LIMITED):
            yield Limit.CLIENT, reason


def _preempted(case: _Case) -> Iterator[Finding]:
    preemptions = case.counter("server_preemptions")
    if case.level.requests and preemptions > PREEMPTED_RATIO * case.level.requests:
        evidence = (
            f"{preemptions:.0f} preemptions among {case.level.requests} requests, whose tokens were computed again;"
            f" KV cache {case.counter('server_kv_use_max_ratio'):.0%} full"
        )
        yield Limit.KV_MEMORY, evidence


# --- the time to the first token --------------------------------------------------------------------------------------


def _first_token(case: _Case) -> Iterator[Finding]:
    ttft_ms = case.value("ttft_ms.mean")
    if ttft_ms is None or not {"server_queue_mean_ms", "server_prefill_mean_ms"} <= case.level.counters.keys():
        stopped = case.level.stopped or ""
        if stopped.startswith(OVERLOAD):
            yield Limit.QUEUEING, stopped
        return
    queue_ms, prefill_ms, api_ms, outside_ms = (
        case.counter(f"server_{part}_mean_ms") for part in ("queue", "prefill", "api", "outside")
    )
    parts = {Limit.QUEUEING: queue_ms, Limit.PREFILL: prefill_ms, Limit.HOST: api_ms + outside_ms}
    largest = max(parts, key=lambda limit: parts[limit])
    whole = f"of a mean TTFT of {_ms(ttft_ms)} ms"
    if largest is Limit.QUEUEING:
        yield _queue(case, f"{whole}, {_ms(queue_ms)} ms passed in the queue")
    elif largest is Limit.PREFILL:
        yield Limit.PREFILL, f"{whole}, {_ms(prefill_ms)} ms went into prefill and {_ms(queue_ms)} ms into the queue"
    else:
        evidence = (
            f"{whole}, {_ms(api_ms)} ms passed in the API server and {_ms(outside_ms)} ms outside of it;"
            f" queue {_ms(queue_ms)} ms, prefill {_ms(prefill_ms)} ms"
        )
        yield Limit.HOST, evidence


def _queue(case: _Case, waited: str) -> Finding:
    """What the queue waits for: memory, the work of prefilling those before it, or a slot."""
    kv_use, running = case.counter("server_kv_use_max_ratio"), case.counter("server_running_max")
    slots, budget, step = case.setting(_SLOTS), case.setting(_BUDGET), case.counter("server_step_mean_tokens")
    if kv_use >= KV_FULL_RATIO:
        return Limit.KV_MEMORY, f"{waited} while the KV cache was {kv_use:.0%} full"
    if budget is not None and step >= FULL_STEPS_RATIO * budget:
        return Limit.PREFILL, f"{waited} behind prefills: the mean step has {step:.0f} of at most {budget} tokens"
    if slots is not None and running >= SLOTS_RATIO * slots:
        return Limit.QUEUEING, f"{waited} while all {slots} slots were taken"
    waiting = case.counter("server_waiting_max")
    return Limit.QUEUEING, f"{waited}: up to {waiting:.0f} waited while {running:.0f} ran, KV cache {kv_use:.0%} full"


# --- the tokens after it ----------------------------------------------------------------------------------------------


def _next_tokens(case: _Case) -> Iterator[Finding]:
    median, mean, tail = (case.value(f"itl_ms.{name}") for name in ("p50", "mean", "p99"))
    running = case.counter("server_running_mean")
    if median and mean and tail and tail > SPIKY_RATIO * median and mean > SPIKY_MEAN_RATIO * median:
        evidence = (
            f"p99 ITL {_ms(tail)} ms against a median of {_ms(median)} ms: prefills in the same step hold decodes up"
            f" (mean step {case.counter('server_step_mean_tokens'):.0f} tokens, {running:.0f} running)"
        )
        yield Limit.PREFILL, evidence
    if (case.communication_ratio or 0.0) > COMMUNICATION_RATIO:
        yield (
            Limit.COMMUNICATION,
            f"{case.communication_ratio:.0%} of a decode step are all-reduces between GPUs, by the model of the GPU",
        )
    if mean is not None:
        yield Limit.DECODE, f"a decode step takes {_ms(mean)} ms" + (f" with {running:.0f} running" if running else "")


def _whole(case: _Case) -> Iterator[Finding]:
    """The larger part of an answer's time decides."""
    e2e_ms, ttft_ms = case.value("e2e_ms.mean"), case.value("ttft_ms.mean")
    if e2e_ms is None or ttft_ms is None:
        return
    yield from _first_token(case) if ttft_ms > e2e_ms / 2 else _next_tokens(case)


def _ms(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
