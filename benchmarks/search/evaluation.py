"""One launch of a landscape in virtual time: arguments and a seed in, what was measured out; and the truth beside it.

A launch is measured as a study would: a finite sample of requests, the same for every candidate of one study, on a
machine whose speed differs by 3 % from launch to launch. The truth is a sample many times as long, without noise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from autotune.engines.simulated.virtual import LAUNCH_NOISE, LEVEL_NOISE
from autotune.models.config import RefusedConfig, SchedulerConfig, from_vllm_args
from autotune.models.memory import MemoryPlan, StartupPhase, startup_failure
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.models.simulation import SimResult
from autotune.records.spec import Args, SimulateSpec, StudySpec
from autotune.records.trial import Outcome
from benchmarks.search.landscapes import Landscape
from benchmarks.search.levels import Launch, Level, capacity_of, closed_level, open_level
from benchmarks.search.traffic import requests
from benchmarks.search.truth import CRASHES, World, seed_of, world

SAMPLE, LONG_SAMPLE = 500, 2_000  # at most so many requests of a search for a capacity
POOL = 16  # requests a client of a closed loop may come to send
LONGER = 4  # times a study's window, for the truth of a closed loop
TRUTH = 999_331  # the seed of the long sample


class Died(StrEnum):
    """Where a launch ended that gave no measurement."""

    CONFIG = "config"
    WEIGHTS = "weights"
    START = "start"
    LOAD = "load"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """A launch. `value`: the objective, None where the engine broke (`died`: where, `line`: its log's last). `excess`:
    by SLO, (value - limit) / limit. `values`: metrics at the load of `rate` requests a second or clients."""

    outcome: Outcome
    died: Died | None = None
    line: str = ""
    value: float | None = None
    excess: Mapping[str, float] = field(default_factory=dict)
    rate: float | None = None
    requests: int = 0
    values: Mapping[str, float] = field(default_factory=dict)
    counters: Mapping[str, float] = field(default_factory=dict)
    kv_tokens: int = 0
    blocks: int = 0


def measure(landscape: Landscape, args: Args, seed: int) -> Measured:
    """Launch `args` in the study of `seed` and measure it, without regard to what else was launched."""
    return _measure(landscape, args, seed)


def truth(landscape: Landscape, args: Args) -> Measured:
    """What `args` really come to."""
    return _measure(landscape, args, None)


def _measure(landscape: Landscape, args: Args, seed: int | None) -> Measured:
    spec, true = landscape.spec, world(landscape)
    shape, gpu = machine_of(spec)
    try:
        config = from_vllm_args(args, shape, gpu)
    except RefusedConfig as refusal:
        return Measured(outcome=Outcome.BAD_CONFIG, died=Died.CONFIG, line=f"Value error, {refusal}")
    plan = true.memory(config)
    if (broken := _broken(config, plan)) is not None:
        return broken
    return _loaded(launch_of(landscape, true, config, plan, seed))


def machine_of(spec: StudySpec) -> tuple[ModelShape, GpuSpec]:
    """Return the model and the GPU that a study simulates."""
    shape, gpu = shape_of(spec.model), gpu_of((spec.engine.simulate or SimulateSpec()).gpu)
    assert shape is not None
    assert gpu is not None
    return shape, gpu


def _broken(config: SchedulerConfig, plan: MemoryPlan) -> Measured | None:
    """A launch that gives no measurement; None for one that does."""
    failure = startup_failure(config, plan)
    if failure is not None:
        early = failure.phase in (StartupPhase.FREE_MEMORY, StartupPhase.WEIGHTS)
        return Measured(outcome=Outcome.OOM_STARTUP, died=Died.WEIGHTS if early else Died.START, line=failure.cause)
    crash = next((crash for crash in CRASHES if crash.holds(config)), None)
    return None if crash is None else Measured(outcome=crash.outcome, died=Died.LOAD, line=crash.line)


def launch_of(landscape: Landscape, true: World, config: SchedulerConfig, plan: MemoryPlan, seed: int | None) -> Launch:
    """Return the launch of a study's candidate; the true one without a seed."""
    objective = landscape.spec.objective
    clients = objective.load.concurrency
    longer = LONGER if seed is None else 1
    count = POOL * clients * longer if clients else (LONG_SAMPLE if seed is None else SAMPLE)
    noise_seed = None if seed is None else seed_of(landscape.name, seed, config)
    return Launch(
        objective=objective,
        config=config,
        costs=true.costs(config, 1.0 if noise_seed is None else _speed(noise_seed)),
        blocks=plan.blocks,
        trace=requests(objective.workload, count, TRUTH if seed is None else seed),
        longer=longer,
        noise_seed=noise_seed,
    )


def _speed(seed: int) -> float:
    """How fast a launch is, the mean being 1: what launches and levels differ by together."""
    return float(np.exp(np.random.default_rng(seed).normal(0.0, math.hypot(LAUNCH_NOISE, LEVEL_NOISE))))


def _loaded(launch: Launch) -> Measured:
    if launch.objective.load.capacity is not None:
        return _at_capacity(launch)
    clients = launch.objective.load.concurrency or 1
    level = closed_level(launch, clients)
    excess = {slo.metric: _excess(level, slo.metric, slo.limit) for slo in launch.objective.slos}
    missed = any(x > 0 for x in excess.values())
    return _measured(launch, level, clients, excess, level.values.get(launch.objective.metric), missed=missed)


def _at_capacity(launch: Launch) -> Measured:
    capacity = capacity_of(launch)
    asked = launch.objective.load.capacity
    low = asked.low if asked is not None and asked.low else 0.1
    level = open_level(launch, capacity or low)
    excess = {slo.metric: _excess(level, slo.metric, slo.limit) for slo in launch.objective.slos}
    if capacity:
        excess = {name: min(x, 0.0) for name, x in excess.items()}  # it was found by these limits
    return _measured(launch, level, capacity or low, excess, capacity, missed=not capacity)


def _excess(level: Level, metric: str, limit: float) -> float:
    return (level.values[metric] - limit) / limit


# --- figures ----------------------------------------------------------------------------------------------------------


def _measured(
    launch: Launch, level: Level, rate: float, excess: Mapping[str, float], value: float | None, *, missed: bool
) -> Measured:
    return Measured(
        outcome=Outcome.SLO_MISS if missed else Outcome.OK,
        value=value,
        excess=excess,
        rate=rate,
        requests=level.requests,
        values=level.values,
        counters=_counters(level.result),
        kv_tokens=launch.blocks * launch.config.block_size,
        blocks=launch.blocks,
    )


def _counters(result: SimResult) -> dict[str, float]:
    """What the engine's own page would have shown, by the names of `measure.counters`."""
    sent = slice(result.issued)
    steps = max(1, result.steps)
    spent_s = max(result.end_s, 1e-9)
    in_engine_s = np.nansum(result.finish_s[sent] - result.admitted_s[sent])
    return {
        "server_requests": float(result.issued),
        "server_preemptions": float(result.preemptions),
        "server_prefix_query_tokens": float(result.queried_tokens),
        "server_prefix_hit_tokens": float(result.hit_tokens),
        "server_running_mean": float(in_engine_s) / spent_s,
        "server_kv_use_max_ratio": result.kv_peak_ratio,
        "server_queue_mean_ms": 1e3 * float(np.nanmean(result.admitted_s[sent] - result.ready_s[sent])),
        "server_prefill_mean_ms": 1e3 * float(np.nanmean(result.prefilled_s[sent] - result.admitted_s[sent])),
        "server_decode_mean_ms": 1e3 * float(np.nanmean(result.finish_s[sent] - result.first_s[sent])),
        "server_step_mean_tokens": float(result.produced_tokens + result.prompt_tokens[sent].sum() - result.hit_tokens)
        / steps,
    }
