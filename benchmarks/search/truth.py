"""What a landscape's machine is really like: its costs, its memory, and where an engine breaks.

In: a configuration as vLLM resolves it. Out: costs and memory that the simulator's differ from by factors and effects
drawn once for each landscape, from a seed that is its name.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import MAX_GRAPH, SchedulerConfig
from autotune.models.memory import MemoryPlan, plan_memory
from autotune.models.steptime import costs_of
from autotune.records.trial import Outcome
from benchmarks.search.landscapes import Landscape, Machine
from benchmarks.search.physics import Extras, TrueCosts, true_costs

Floats = NDArray[np.float64]

OFF = (0.26, 0.47)  # of |ln factor|: 30 to 60 %
SPLIT = 0.08  # standard deviation of the same for every set of kernels of its own (parallelism, precision)
COSTS = ("weights", "gemm_per_token", "attn_per_pair", "attn_per_kv", "per_token", "floor", "launch")
HOST = ("host", "host_per_seq")
API = ("api_latency", "api_per_request", "api_per_prompt_token", "api_per_token")
WAVES = 40  # random cosines that a field is made of
FIELD = 0.05  # standard deviation of what the speed of a configuration differs by without any reason known


@dataclass(frozen=True, slots=True, kw_only=True)
class Demands:
    """Memory beyond the model's: factors on activations and graphs, bytes beside them."""

    activations: float = 1.0
    graphs: float = 1.0
    other_bytes: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Crash:
    """A region in which the engine starts and then breaks, and what its log says of it."""

    holds: Callable[[SchedulerConfig], bool]
    outcome: Outcome
    line: str


CRASHES = (
    Crash(
        holds=lambda c: c.kv_bytes < c.shape.dtype_bytes and c.block_size >= 128,
        outcome=Outcome.CRASHED_UNDER_LOAD,
        line="torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
    ),
    Crash(
        holds=lambda c: c.gpu_memory_utilization > 0.955 and c.max_num_batched_tokens >= 12_000,
        outcome=Outcome.OOM_LOAD,
        line="torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.75 GiB.",
    ),
    Crash(
        holds=lambda c: c.optimization_level == 1 and c.max_num_seqs > MAX_GRAPH and not c.chunked_prefill,
        outcome=Outcome.CRASHED_UNDER_LOAD,
        line="RuntimeError: CUDA error: invalid configuration argument",
    ),
)
"""Of every landscape: nothing that the memory model or the engine's own check knows of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One machine. `factors` multiply costs by name; `split` those of one set of kernels, `field` all of one
    configuration."""

    factors: Mapping[str, float]
    extras: Extras
    demands: Demands
    split: Callable[[SchedulerConfig, str], float]
    field: Callable[[SchedulerConfig], float]
    fp8_cache: float = 1.0
    hashing: float = 1.0
    blocks: Mapping[int, float] | None = None

    def costs(self, config: SchedulerConfig, speed: float = 1.0) -> TrueCosts:
        """Seconds by step and unit; `speed` > 1 is a launch that is faster than the mean."""
        costs = costs_of(config, speed=speed * self.field(config))
        changed = {name: getattr(costs, name) * factor for name, factor in self.factors.items()}
        for name in COSTS:
            changed[name] *= self.split(config, name)
        if config.kv_bytes < config.shape.dtype_bytes:
            changed["attn_per_kv"] *= self.fp8_cache
            changed["attn_per_pair"] *= self.fp8_cache
        if config.prefix_caching:
            changed["api_per_prompt_token"] *= self.hashing
        changed["attn_per_kv"] *= (self.blocks or {}).get(config.block_size, 1.0)
        return true_costs(costs._replace(**changed), self.extras)

    def memory(self, config: SchedulerConfig) -> MemoryPlan:
        """Where the memory goes."""
        plan = plan_memory(config)
        activation, other = (
            plan.activation_bytes * self.demands.activations,
            plan.other_bytes + self.demands.other_bytes,
        )
        kv_bytes = plan.kv_bytes + plan.activation_bytes + plan.other_bytes - activation - other
        return replace(
            plan,
            activation_bytes=activation,
            other_bytes=other,
            graph_bytes=plan.graph_bytes * self.demands.graphs,
            kv_bytes=kv_bytes,
            blocks=max(0, int(max(0.0, kv_bytes) // (plan.kv_token_bytes * plan.block_size)) - 1),
        )


@cache
def world_of(landscape: str, machine: Machine) -> World:
    """Return the machine of a landscape by its study's name."""
    names = (*COSTS, *HOST, *API)
    if machine is Machine.SAME:
        return World(
            factors=dict.fromkeys(names, 1.0),
            extras=Extras(),
            demands=Demands(),
            split=lambda _config, _name: 1.0,
            field=lambda _: 1.0,
        )
    rng = np.random.default_rng(seed_of(landscape, machine))
    factors = {name: math.exp(rng.choice((-1, 1)) * rng.uniform(*OFF)) for name in names}
    demands = Demands(activations=math.exp(rng.uniform(0.1, 0.4)), other_bytes=rng.uniform(0.2e9, 0.8e9))
    plain = World(
        factors=factors,
        extras=Extras(),
        demands=demands,
        split=_split(landscape, machine),
        field=lambda _: 1.0,
    )
    return plain if machine is Machine.CONSTANTS else _with_effects(plain, rng)


def _with_effects(plain: World, rng: np.random.Generator) -> World:
    """Effects that no constant of the simulator can stand for. Sizes are guesses, drawn so that none is negligible."""
    blocks = {
        16: 1 + rng.uniform(0.03, 0.15),
        32: 1.0,
        64: 1 - rng.uniform(0.0, 0.05),
        128: 1 + rng.uniform(-0.05, 0.1),
    }
    return replace(
        plain,
        extras=Extras(
            tile_tok=int(rng.choice((64, 128, 256))),
            mixed_s=rng.uniform(1e-3, 4e-3),
            mixed_ratio=rng.uniform(0.1, 0.5),
            graph_pad=int(rng.choice((8, 16, 32))),
            skew_per_seq=rng.uniform(2e-4, 1e-3),
            exposed_ratio=rng.uniform(0.3, 0.8),
        ),
        demands=replace(plain.demands, graphs=rng.uniform(1.2, 1.8)),
        field=_field(rng),
        fp8_cache=rng.uniform(1.1, 1.4),
        hashing=rng.uniform(2.0, 5.0),
        blocks=blocks,
    )


def _split(landscape: str, machine: Machine) -> Callable[[SchedulerConfig, str], float]:
    @cache
    def drawn(kernels: tuple[int, str, float], name: str) -> float:
        rng = np.random.default_rng(seed_of(landscape, machine, kernels, name))
        return math.exp(rng.normal(0.0, SPLIT))

    return lambda config, name: drawn((config.tp, config.weights, config.kv_bytes), name)


def _field(rng: np.random.Generator) -> Callable[[SchedulerConfig], float]:
    """A smooth random function of a configuration with mean 1."""
    waves = rng.normal(0.0, 1.0, (WAVES, len(_place(None))))
    phases = rng.uniform(0.0, 2 * math.pi, WAVES)

    def factor(config: SchedulerConfig) -> float:
        cosines = np.cos(waves @ np.array(_place(config)) + phases)
        return math.exp(FIELD * math.sqrt(2 / WAVES) * float(cosines.sum()))

    return factor


def _place(config: SchedulerConfig | None) -> tuple[float, ...]:
    """A configuration as numbers of about the same range; zeros for none."""
    if config is None:
        return (0.0,) * 11
    return (
        math.log2(config.max_num_seqs) / 4,
        math.log2(config.max_num_batched_tokens) / 4,
        config.gpu_memory_utilization * 5,
        float(config.chunked_prefill),
        math.log2(config.long_prefill_token_threshold + 256) / 3,
        float(config.prefix_caching),
        math.log2(config.block_size) / 2,
        float(config.async_scheduling),
        math.log2(config.stream_interval) / 2,
        float(config.weights == "fp8"),
        config.kv_bytes / 2,
    )


def seed_of(*parts: object) -> int:
    """A seed that depends on all `parts`."""
    return int.from_bytes(hashlib.sha256(repr(tuple(str(part) for part in parts)).encode()).digest()[:4])


def world(landscape: Landscape) -> World:
    """Return the machine of a landscape."""
    return world_of(landscape.spec.name, landscape.machine)
