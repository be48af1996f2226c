"""How long a launch takes until it is ready. Our estimates from public start-up logs; orders, not measurements."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.models.config import GIB, SchedulerConfig
from autotune.models.memory import MemoryPlan

IMPORT_S = 10.0  # python, torch, the parser, one EngineCore; 7-11 s seen on two CPU cores
RANKS_S = 5.0  # NCCL and one more process a GPU, once
COLD_LOAD_BYTES_PER_S, WARM_LOAD_BYTES_PER_S = 1.5e9, 4 * GIB  # from disk; from the page cache
PROFILE_S = 2.0
COMPILE_BASE_S, COMPILE_PER_LAYER_S, CACHED_COMPILE_S = 12.0, 0.7, 6.0
GRAPH_S = 0.06  # a graph of a 32-layer model
PIECEWISE_SIZES, LAYERS_OF_ESTIMATE = 51, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupTime:
    """Seconds by phase; `compile_cold` tells whether torch.compile's cache was empty."""

    import_s: float
    weights_s: float
    compile_s: float
    profile_s: float
    graphs_s: float
    compile_cold: bool

    @property
    def total_s(self) -> float:
        """Seconds until the server is ready."""
        return self.import_s + self.weights_s + self.compile_s + self.profile_s + self.graphs_s


def startup_time(
    config: SchedulerConfig, plan: MemoryPlan, *, compile_cold: bool = True, pages_cold: bool = True
) -> StartupTime:
    """Estimate the launch of `config`; warm when an equal one has compiled (or read the weights) before."""
    layers = config.shape.layers
    rate = COLD_LOAD_BYTES_PER_S if pages_cold else WARM_LOAD_BYTES_PER_S
    compile_s = COMPILE_BASE_S + COMPILE_PER_LAYER_S * layers if compile_cold else CACHED_COMPILE_S
    kinds = 2 if config.optimization_level > 1 else 1  # full graphs for decodes besides the piecewise ones
    sizes = PIECEWISE_SIZES * min(1.0, config.max_graph / 512)
    return StartupTime(
        import_s=IMPORT_S + (RANKS_S if config.tp > 1 else 0.0),
        weights_s=plan.weights_bytes * config.tp / rate,
        compile_s=0.0 if config.eager else compile_s,
        profile_s=PROFILE_S,
        graphs_s=0.0 if config.eager else kinds * sizes * GRAPH_S * layers / LAYERS_OF_ESTIMATE,
        compile_cold=compile_cold and not config.eager,
    )


def compile_key(config: SchedulerConfig) -> tuple[object, ...]:
    """What torch.compile's cache depends on: two launches with equal keys compile once."""
    return (config.shape.name, config.tp, config.weights, config.kv_bytes, config.max_num_batched_tokens,
            config.optimization_level)  # fmt: skip
