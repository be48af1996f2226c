"""Whether a configuration is certain to run out of memory while it starts: the memory model with a margin.

Only what the model is sure of is ever excluded. Its demands (weights, activations, the rest) are cut by a margin first,
which what launched engines report then narrows; and only plain decoders on GPUs of the table are judged at all.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from autotune.models.config import GIB, RefusedConfig, SchedulerConfig, from_vllm_args
from autotune.models.memory import MemoryPlan, StartupPhase, plan_memory, startup_failure
from autotune.models.shapes import GpuSpec, ModelShape
from autotune.records.spec import Args

MARGIN, CALIBRATED_MARGIN = 0.15, 0.05
CALIBRATED_AFTER = 3  # launches that told their KV cache
CERTAIN = frozenset({StartupPhase.WEIGHTS, StartupPhase.PROFILE, StartupPhase.KV_ALLOCATION, StartupPhase.KV_TOO_SMALL})
"""Graph capture and the sampler's warm-up live in what is left over, a small difference of large figures."""

_OUTSIDE = ("offload", "hf_overrides", "swap_space", "load_format", "speculative", "kv_transfer", "lora")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """The memory model of one model on one kind of GPU. `needed`: the share of predicted demands that is certain."""

    shape: ModelShape
    gpu: GpuSpec
    needed: float = 1 - MARGIN

    def too_large(self, args: Args) -> str | None:
        """Return why these arguments can't fit, with figures; None when they may, or when nothing is known of them."""
        config = self._config(args)
        if config is None:
            return None
        plan = plan_memory(config)
        failure = startup_failure(config, cut(config, plan, self.needed))
        if failure is None or failure.phase not in CERTAIN:
            return None
        return _words(config, plan, failure.phase)

    def calibrated(self, launched: Sequence[tuple[Args, Mapping[str, Any]]]) -> Fit:
        """Return the model as launched engines bear it out: (arguments, resolved settings) of each."""
        seen = [ratio for args, resolved in launched if (ratio := self._observed(args, resolved)) is not None]
        margin = CALIBRATED_MARGIN if len(seen) >= CALIBRATED_AFTER else MARGIN
        return replace(self, needed=min([1.0, *seen]) * (1 - margin))

    def _config(self, args: Args) -> SchedulerConfig | None:
        if any(word in name for name in args for word in _OUTSIDE):
            return None
        try:
            return from_vllm_args(args, self.shape, self.gpu)
        except RefusedConfig:
            return None

    def _observed(self, args: Args, resolved: Mapping[str, Any]) -> float | None:
        """Demand that a launch showed, over the one predicted: what its budget of memory did not leave to the cache."""
        config, tokens = self._config(args), resolved.get("kv_cache_tokens")
        if config is None or not isinstance(tokens, int) or config.kv_cache_memory_bytes or config.blocks_override:
            return None
        plan = plan_memory(config)
        taken = plan.total_bytes * config.gpu_memory_utilization - tokens * plan.kv_token_bytes
        return max(0.0, taken) / (plan.weights_bytes + plan.activation_bytes + plan.other_bytes)


def cut(config: SchedulerConfig, plan: MemoryPlan, needed: float) -> MemoryPlan:
    """Return the plan with `needed` times its demands, and the KV cache in what that leaves."""
    weights, activation, other = (
        part * needed for part in (plan.weights_bytes, plan.activation_bytes, plan.other_bytes)
    )
    kv = plan.total_bytes * config.gpu_memory_utilization - weights - activation - other
    if config.kv_cache_memory_bytes is not None:
        kv = plan.kv_bytes
    token = plan.kv_token_bytes * needed
    blocks = plan.blocks if config.blocks_override is not None else int(max(0.0, kv) // (token * plan.block_size))
    return replace(
        plan,
        weights_bytes=weights,
        activation_bytes=activation,
        other_bytes=other,
        graph_bytes=plan.graph_bytes * needed,
        sampler_bytes=plan.sampler_bytes * needed,
        kv_bytes=kv,
        kv_token_bytes=token,
        blocks=blocks,
    )


def _words(config: SchedulerConfig, plan: MemoryPlan, phase: StartupPhase) -> str:
    demands = (
        f"weights {_gib(plan.weights_bytes)}, activations {_gib(plan.activation_bytes)} and the rest "
        f"{_gib(plan.other_bytes)} GiB"
    )
    budget = f"{config.gpu_memory_utilization:g} of {_gib(plan.total_bytes)} GiB on each {config.gpu.name}"
    if phase is StartupPhase.KV_TOO_SMALL:
        need = config.max_model_len * plan.kv_token_bytes
        return (
            f"a request of max_model_len {config.max_model_len} takes {_gib(need)} GiB of KV cache; {demands} leave "
            f"{_gib(max(0.0, plan.kv_bytes))} of {budget}"
        )
    return f"{demands} leave no room for a KV cache in {budget}"


def _gib(value: float) -> str:
    return f"{value / GIB:.1f}"
