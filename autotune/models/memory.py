"""What fits on the GPU: weights, activations, graphs, KV blocks, and the phase at which a start-up runs out."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from autotune.models.config import GIB, SchedulerConfig

OTHER_BYTES = 0.6e9  # CUDA context, workspaces and what else is not the model's
TP_BYTES = 0.6 * GIB  # NCCL and custom all-reduce buffers with several GPUs
CONTEXT_BYTES = 0.5 * GIB  # taken before the engine looks at what is free
GRAPH_BASE_BYTES, GRAPH_SPAN_BYTES = 0.4 * GIB, 0.8 * GIB  # of the smallest set of graphs; more for the largest set
GRAPH_SPAN_SEQS = 512
SLACK_BYTES = 0.15 * GIB  # the profiled peak is rounded up, so a little more than 1 - utilization is free afterwards
ACTIVATION_PER_HIDDEN, ACTIVATION_PER_FFN, LOGIT_BYTES = 28, 4, 8
SAMPLER_BYTES = 4  # sorting probabilities in float32, beyond what the profile run had seen


class StartupPhase(StrEnum):
    """Where in its start-up an engine runs out of memory, in order."""

    FREE_MEMORY = "free_memory"
    WEIGHTS = "weights"
    PROFILE = "profile"
    KV_ALLOCATION = "kv_allocation"
    KV_TOO_SMALL = "kv_too_small"
    GRAPH_CAPTURE = "graph_capture"
    SAMPLER_WARMUP = "sampler_warmup"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryPlan:
    """Bytes per GPU. `kv_bytes` may be negative: then nothing is left for the cache. `blocks` are usable ones."""

    total_bytes: float
    weights_bytes: float
    activation_bytes: float
    other_bytes: float
    graph_bytes: float
    sampler_bytes: float
    kv_bytes: float
    kv_token_bytes: float
    block_size: int
    blocks: int

    @property
    def kv_tokens(self) -> int:
        """Tokens that the KV cache holds."""
        return self.blocks * self.block_size


@dataclass(frozen=True, slots=True, kw_only=True)
class StartupFailure:
    """Why a launch would run out of memory: the phase, and the line that vLLM 0.32 prints."""

    phase: StartupPhase
    cause: str


def plan_memory(config: SchedulerConfig) -> MemoryPlan:
    """Split one GPU's memory as vLLM does: KV gets total x utilization minus weights, profiled peak and the rest."""
    total, tp, shape = float(config.gpu.memory_bytes), config.tp, config.shape
    weights = _weights(config)
    activation = (
        config.max_num_batched_tokens * (ACTIVATION_PER_HIDDEN * shape.hidden + ACTIVATION_PER_FFN * shape.ffn / tp)
        + config.max_num_seqs * shape.vocab * LOGIT_BYTES / tp
    )
    other = OTHER_BYTES + (TP_BYTES if tp > 1 else 0.0)
    kv = total * config.gpu_memory_utilization - weights - activation - other
    if config.kv_cache_memory_bytes is not None:
        kv = float(config.kv_cache_memory_bytes)
    token = kv_token_bytes(config)
    return MemoryPlan(
        total_bytes=total,
        weights_bytes=weights,
        activation_bytes=activation,
        other_bytes=other,
        graph_bytes=_graphs(config),
        sampler_bytes=config.max_num_seqs * shape.vocab * SAMPLER_BYTES / tp,
        kv_bytes=kv,
        kv_token_bytes=token,
        block_size=config.block_size,
        blocks=_blocks(config, kv, token),
    )


def kv_token_bytes(config: SchedulerConfig) -> float:
    """Bytes of keys and values of one token on one GPU; heads are split, but never below one a GPU."""
    shape = config.shape
    return 2 * shape.kv_heads * shape.head_dim * config.kv_bytes / min(config.tp, shape.kv_heads) * shape.layers


def _weights(config: SchedulerConfig) -> float:
    shape = config.shape
    embeddings = shape.vocab * shape.hidden * shape.dtype_bytes * (1 if shape.tied else 2)
    return (shape.layers * shape.layer_parameters * config.weight_bytes + embeddings) / config.tp


def _graphs(config: SchedulerConfig) -> float:
    if config.eager:
        return 0.0
    return GRAPH_BASE_BYTES + min(config.max_graph, config.max_num_seqs) / GRAPH_SPAN_SEQS * GRAPH_SPAN_BYTES


def _blocks(config: SchedulerConfig, kv_bytes: float, token_bytes: float) -> int:
    """Usable blocks: vLLM keeps the first one as its null block."""
    blocks = config.blocks_override
    if blocks is None:
        blocks = int(max(0.0, kv_bytes) // (token_bytes * config.block_size))
    return max(0, blocks - 1)


def startup_failure(config: SchedulerConfig, plan: MemoryPlan) -> StartupFailure | None:
    """Return the first phase at which the launch runs out of memory, or None when it starts."""
    for phase, check in _CHECKS:
        cause = check(config, plan)
        if cause:
            return StartupFailure(phase=phase, cause=cause)
    return None


def _gib(value: float) -> str:
    return f"{value / GIB:.2f}"


def _cuda_oom(plan: MemoryPlan, wanted: float, free: float) -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {_gib(wanted)} GiB. GPU 0 has a total capacity "
        f"of {_gib(plan.total_bytes)} GiB of which {_gib(max(0.0, free))} GiB is free."
    )


def _free_memory(config: SchedulerConfig, plan: MemoryPlan) -> str:
    free, wanted = plan.total_bytes - CONTEXT_BYTES, plan.total_bytes * config.gpu_memory_utilization
    if free >= wanted or config.kv_cache_memory_bytes is not None:
        return ""
    return (
        f"ValueError: Free memory on device cuda:0 ({_gib(free)}/{_gib(plan.total_bytes)} GiB) on startup is less than "
        f"desired GPU memory utilization ({config.gpu_memory_utilization}, {_gib(wanted)} GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes."
    )


def _weights_fit(config: SchedulerConfig, plan: MemoryPlan) -> str:
    free = plan.total_bytes - CONTEXT_BYTES
    layer = plan.weights_bytes / config.shape.layers
    return _cuda_oom(plan, layer, free % layer) if plan.weights_bytes > free else ""


def _profile_fits(_config: SchedulerConfig, plan: MemoryPlan) -> str:
    free = plan.total_bytes - plan.other_bytes - plan.weights_bytes
    return _cuda_oom(plan, plan.activation_bytes, free) if plan.activation_bytes > free else ""


def _kv_allocation(config: SchedulerConfig, plan: MemoryPlan) -> str:
    if plan.kv_bytes <= 0 and config.blocks_override is None:
        return (
            "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
            "initializing the engine."
        )
    free = plan.total_bytes - plan.weights_bytes - plan.other_bytes
    return _cuda_oom(plan, plan.kv_bytes, free) if plan.kv_bytes > free else ""


def _kv_large_enough(config: SchedulerConfig, plan: MemoryPlan) -> str:
    if plan.kv_tokens >= config.max_model_len:
        return ""
    return (
        f"ValueError: To serve at least one request with the model's max seq len ({config.max_model_len}), "
        f"({_gib(config.max_model_len * plan.kv_token_bytes)} GiB KV cache is needed, which is larger than the "
        f"available KV cache memory ({_gib(plan.kv_bytes)} GiB). Based on the available memory, the estimated maximum "
        f"model length is {plan.kv_tokens}. Try increasing `gpu_memory_utilization` or decreasing `max_model_len` when "
        "initializing the engine."
    )


def outside_bytes(config: SchedulerConfig, plan: MemoryPlan) -> float:
    """Return the bytes that are free once the KV cache stands; graphs and the sampler's warm-up live there."""
    if config.kv_cache_memory_bytes is None:
        return plan.total_bytes * (1 - config.gpu_memory_utilization) + SLACK_BYTES
    held = plan.weights_bytes + plan.activation_bytes + plan.other_bytes + plan.kv_bytes
    return plan.total_bytes - held + SLACK_BYTES


def _graphs_fit(config: SchedulerConfig, plan: MemoryPlan) -> str:
    free = outside_bytes(config, plan)
    return _cuda_oom(plan, plan.graph_bytes, free) if plan.graph_bytes > free else ""


def _sampler_fits(config: SchedulerConfig, plan: MemoryPlan) -> str:
    if plan.sampler_bytes <= outside_bytes(config, plan) - plan.graph_bytes:
        return ""
    return (
        f"RuntimeError: CUDA out of memory occurred when warming up sampler with {config.max_num_seqs} dummy requests. "
        "Please try lowering `max_num_seqs` or `gpu_memory_utilization` when initializing the engine."
    )


_CHECKS = (
    (StartupPhase.FREE_MEMORY, _free_memory),
    (StartupPhase.WEIGHTS, _weights_fit),
    (StartupPhase.PROFILE, _profile_fits),
    (StartupPhase.KV_ALLOCATION, _kv_allocation),
    (StartupPhase.KV_TOO_SMALL, _kv_large_enough),
    (StartupPhase.GRAPH_CAPTURE, _graphs_fit),
    (StartupPhase.SAMPLER_WARMUP, _sampler_fits),
)
