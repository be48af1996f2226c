"""A launch under load in virtual time: levels of requests, and the highest rate at which every SLO holds."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

import numpy as np

from autotune.engines.simulated.virtual import STEP_NOISE
from autotune.models.config import SchedulerConfig
from autotune.models.observed import timeline_of
from autotune.models.simulation import NEVER_S, Limit, SimResult, Trace, simulate
from autotune.records.metrics import parse_metric
from autotune.records.spec import ObjectiveSpec
from benchmarks.search.physics import TrueCosts, true_kernel

FEWEST = 120  # requests of a level, however low its rate
FINE = 0.006  # of ln(load): how exactly a capacity is found
STRIDE = 0.5  # of ln(load), with which it is bracketed
SHOWN = (0.5, 0.9, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A configuration that runs: its costs in this launch, its KV blocks, and its sample of requests."""

    objective: ObjectiveSpec
    config: SchedulerConfig
    costs: TrueCosts
    blocks: int
    trace: Trace
    longer: int = 1
    noise_seed: int | None = None

    def run(
        self, trace: Trace, *, clients: int | None = None, until_s: float = NEVER_S, limit: Limit | None = None
    ) -> SimResult:
        """Simulate the trace; a closed loop sends none after `until_s`, and all come to their end."""
        return simulate(
            trace,
            self.config,
            concurrency=clients,
            last_start_s=until_s,
            limit=limit,
            blocks=self.blocks,
            seed=self.noise_seed or 0,
            noise_ratio=0.0 if self.noise_seed is None else STEP_NOISE,
            physics=(true_kernel(), self.costs),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A level's metrics by name, and the simulation behind it."""

    values: Mapping[str, float]
    result: SimResult
    requests: int


def closed_level(launch: Launch, clients: int) -> Level:
    """So many clients, each sending its next request when it has its answer."""
    load = launch.objective.load
    end_s = load.warmup_s + load.duration_s * launch.longer
    trace = replace(launch.trace, arrival_s=np.zeros_like(launch.trace.arrival_s))
    result = launch.run(trace, clients=clients, until_s=end_s)
    return _level(result, load.warmup_s, min(end_s, float(result.sent_s[: result.issued][-1])))


def open_level(launch: Launch, rate: float) -> Level:
    """Requests at `rate` a second until all have their answers, a tenth of them to warm up."""
    result = launch.run(sample_at(launch, rate))
    return _level(result, float(result.sent_s[len(result.sent_s) // 10]), float(result.sent_s[-1]))


def _level(result: SimResult, begin_s: float, end_s: float) -> Level:
    timeline = timeline_of(result)
    counted = (timeline.sent_s >= begin_s) & (timeline.sent_s <= end_s)
    seen = timeline.latencies(counted, NEVER_S)
    values: dict[str, float] = {}
    for base in ("ttft_ms", "tpot_ms", "e2e_ms"):
        found = seen.of(base)
        if len(found):
            values |= {
                f"{base}.p{round(100 * q)}": float(x) for q, x in zip(SHOWN, np.quantile(found, SHOWN), strict=True)
            }
            values[f"{base}.mean"] = float(found.mean())
    output, total = _tokens(result, begin_s, end_s)
    window_s = max(end_s - begin_s, 1e-9)
    values |= {"output_tok_per_s": output / window_s, "total_tok_per_s": total / window_s, "error_ratio": 0.0}
    values["request_rps"] = float(((result.finish_s >= begin_s) & (result.finish_s <= end_s)).sum()) / window_s
    return Level(values=values, result=result, requests=int(counted.sum()))


def _tokens(result: SimResult, begin_s: float, end_s: float) -> tuple[float, float]:
    """Tokens of answers, and of prompts and answers, between two times; answers spread evenly over their time."""
    sent = slice(result.issued)
    first_s, finish_s = result.first_s[sent], np.maximum(result.finish_s[sent], result.first_s[sent] + 1e-9)
    share = np.clip(np.minimum(finish_s, end_s) - np.maximum(first_s, begin_s), 0.0, None) / (finish_s - first_s)
    output = float(np.nansum(share * result.output_tokens[sent]))
    prompts = float(result.prompt_tokens[sent][(first_s >= begin_s) & (first_s <= end_s)].sum())
    return output, output + prompts


# --- capacity ---------------------------------------------------------------------------------------------------------


def capacity_of(launch: Launch) -> float:
    """Return the highest rate at which every SLO holds, in requests a second; 0 where none does."""
    asked = launch.objective.load.capacity
    low, high = (asked.low or 0.1, asked.high or 1e3) if asked is not None else (0.1, 1e3)

    def holds(at: float) -> bool:
        return _holds(launch, math.exp(at))

    return _highest(holds, math.log(low), math.log(high))


def _highest(holds: Callable[[float], bool], low: float, high: float) -> float:
    """The exponential of the highest point at which it holds; 0 where it doesn't even at `low`."""
    middle = (low + high) / 2
    stride = STRIDE if holds(middle) else -STRIDE
    at = middle
    while low <= at + stride <= high and holds(at + stride) == (stride > 0):
        at += stride
    bottom, top = sorted((at, min(max(at + stride, low), high)))
    if bottom <= low and not holds(low):
        return 0.0
    while top - bottom > FINE:
        middle = (bottom + top) / 2
        bottom, top = (middle, top) if holds(middle) else (bottom, middle)
    return math.exp(bottom)


def _limit(objective: ObjectiveSpec, count: int) -> Limit:
    """Where a simulation may end: more misses than all SLOs on TTFT and TPOT allow together."""
    limits, allowed = {"ttft_ms": NEVER_S, "tpot_ms": NEVER_S}, 0
    for slo in objective.slos:
        metric = parse_metric(slo.metric)
        if metric is not None and metric.quantile is not None and metric.base in limits:
            limits[metric.base] = slo.limit / 1e3
            allowed += math.ceil((1 - metric.quantile) * count)
    return Limit(ttft_s=limits["ttft_ms"], tpot_s=limits["tpot_ms"], allowed=allowed)


def sample_at(launch: Launch, rate: float) -> Trace:
    """The requests that a study has time for at `rate`."""
    asked = launch.objective.load.capacity
    time_s = (asked.load_s if asked is not None else 60.0) * launch.longer
    count = min(len(launch.trace.prompt_tokens), max(FEWEST, round(rate * time_s)))
    columns = {each.name: getattr(launch.trace, each.name)[:count] for each in fields(Trace)}
    return Trace(**columns).at_rate(rate)


def _holds(launch: Launch, rate: float) -> bool:
    trace = sample_at(launch, rate)
    limit = _limit(launch.objective, len(trace.prompt_tokens))
    result = launch.run(trace, limit=limit)
    if result.stuck or result.missed > limit.allowed:
        return False
    seen = timeline_of(result).latencies(np.ones(result.issued, dtype=np.bool_), NEVER_S)
    for slo in launch.objective.slos:
        metric = parse_metric(slo.metric)
        if (
            metric is not None
            and metric.quantile is not None
            and np.quantile(seen.of(metric.base), metric.quantile) > slo.limit
        ):
            return False
    return True
