"""What TensorRT-LLM's options come to: a `SchedulerConfig` with its defaults filled in, or a refusal.

Defaults are those of TorchLlmArgs, 1.2 to 1.4rc. Two things differ from vLLM: the KV cache takes its share of what is
free once the model is there (vLLM's is of all memory), and GUARANTEED_NO_EVICT admits a request only when all of it
will fit. One size of everything else is taken from vLLM's memory model: nothing of it was checked on a GPU.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from autotune.models.config import FP8_CAPABILITY, KV_BYTES, RefusedConfig, SchedulerConfig
from autotune.models.memory import plan_memory
from autotune.models.shapes import GpuSpec, ModelShape
from autotune.records.spec import Args

MAX_BATCH_SIZE, MAX_NUM_TOKENS, KV_FRACTION, TOKENS_PER_BLOCK, GRAPH_BATCH_SIZE = 2048, 8192, 0.9, 32, 128
NO_EVICT = "GUARANTEED_NO_EVICT"


def from_trtllm_args(args: Args, shape: ModelShape, gpu: GpuSpec) -> SchedulerConfig:
    """Resolve nested `args`; raises RefusedConfig for what the engine would refuse, and for what is not simulated."""
    _refuse(args, shape)
    kv, scheduler = _group(args, "kv_cache_config"), _group(args, "scheduler_config")
    batch = int(args.get("max_batch_size", MAX_BATCH_SIZE))
    dtype = str(kv.get("dtype", "auto"))
    kv_bytes = next((size for prefix, size in KV_BYTES.items() if dtype.startswith(prefix)), shape.dtype_bytes)
    if kv_bytes < shape.dtype_bytes and gpu.capability < FP8_CAPABILITY:
        raise RefusedConfig(f"a quantised KV cache needs compute capability 8.9; {gpu.name} has {gpu.capability / 10}")
    config = SchedulerConfig(
        shape=shape,
        gpu=gpu,
        tp=int(args.get("tensor_parallel_size", 1)),
        max_model_len=int(args.get("max_seq_len", shape.max_position)),
        max_num_seqs=batch,
        max_num_batched_tokens=int(args.get("max_num_tokens", MAX_NUM_TOKENS)),
        chunked_prefill=bool(args.get("enable_chunked_prefill", False)),
        block_size=int(kv.get("tokens_per_block", TOKENS_PER_BLOCK)),
        prefix_caching=bool(kv.get("enable_block_reuse", True)),
        eager="cuda_graph_config" in args and args["cuda_graph_config"] is None,
        async_scheduling=not args.get("disable_overlap_scheduler", False),
        weights=shape.weight_format,
        kv_bytes=kv_bytes,
        gpu_memory_utilization=1.0,
        stream_interval=int(args.get("stream_interval", 1)),
        max_graph=int(_group(args, "cuda_graph_config").get("max_batch_size", 0)) or GRAPH_BATCH_SIZE,
        no_evict=scheduler.get("capacity_scheduler_policy", NO_EVICT) == NO_EVICT,
    )
    return replace(config, kv_cache_memory_bytes=_kv_memory(config, kv))


def _group(args: Args, name: str) -> Mapping[str, Any]:
    group = args.get(name)
    return group if isinstance(group, Mapping) else {}


def _kv_memory(config: SchedulerConfig, kv: Mapping[str, Any]) -> int:
    """The share of what weights, activations, graphs and the rest leave; `max_tokens` bounds it."""
    plan = plan_memory(config)
    left = max(0.0, plan.kv_bytes - plan.graph_bytes - plan.sampler_bytes)
    share = left * float(kv.get("free_gpu_memory_fraction", KV_FRACTION))
    tokens = kv.get("max_tokens")
    return int(share if tokens is None else min(share, float(tokens) * plan.kv_token_bytes))


def _refuse(args: Args, shape: ModelShape) -> None:
    for name in ("pipeline_parallel_size", "context_parallel_size", "moe_expert_parallel_size"):
        if args.get(name) not in (None, 1):
            raise RefusedConfig(f"{name}={args[name]} is not simulated: only tensor_parallel_size is")
    if args.get("speculative_config"):
        raise RefusedConfig("speculative_config is not simulated")
    tp = int(args.get("tensor_parallel_size", 1))
    if shape.heads % tp:
        raise RefusedConfig(f"{shape.heads} attention heads can't be divided by tensor_parallel_size {tp}")
