"""What limits a server, and which engine parameters usually move each limit, the likeliest first. Data, no logic.

From the engines' tuning guides and what the parameters do; a study's own importances (its report) are the better guide
once it has run.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

from autotune.records.spec import EngineKind


class Limit(StrEnum):
    QUEUEING = "queueing"
    PREFILL = "prefill"
    DECODE = "decode"
    KV_MEMORY = "KV memory"
    COMMUNICATION = "communication"
    HOST = "host"
    CLIENT = "load client"
    ERRORS = "errors"
    UNKNOWN = "unknown"


_VLLM: Mapping[Limit, tuple[str, ...]] = {
    Limit.QUEUEING: ("max_num_seqs", "max_num_batched_tokens", "data_parallel_size", "tensor_parallel_size"),
    Limit.PREFILL: (
        "max_num_batched_tokens",
        "long_prefill_token_threshold",
        "enable_prefix_caching",
        "tensor_parallel_size",
    ),
    Limit.DECODE: (
        "max_num_seqs",
        "tensor_parallel_size",
        "kv_cache_dtype",
        "quantization",
        "speculative_config",
        "compilation_config",
    ),
    Limit.KV_MEMORY: (
        "gpu_memory_utilization",
        "kv_cache_dtype",
        "max_num_seqs",
        "max_model_len",
        "tensor_parallel_size",
    ),
    Limit.COMMUNICATION: ("tensor_parallel_size", "data_parallel_size", "disable_custom_all_reduce"),
    Limit.HOST: ("api_server_count", "stream_interval", "async_scheduling", "data_parallel_size"),
}

_TENSORRT_LLM: Mapping[Limit, tuple[str, ...]] = {
    Limit.QUEUEING: ("max_batch_size", "max_num_tokens", "tensor_parallel_size"),
    Limit.PREFILL: (
        "max_num_tokens",
        "enable_chunked_prefill",
        "kv_cache_config.enable_block_reuse",
        "tensor_parallel_size",
    ),
    Limit.DECODE: (
        "max_batch_size",
        "tensor_parallel_size",
        "kv_cache_config.dtype",
        "cuda_graph_config",
        "speculative_config",
    ),
    Limit.KV_MEMORY: (
        "kv_cache_config.free_gpu_memory_fraction",
        "kv_cache_config.dtype",
        "max_batch_size",
        "max_seq_len",
        "scheduler_config.capacity_scheduler_policy",
    ),
    Limit.COMMUNICATION: ("tensor_parallel_size", "allreduce_strategy"),
    Limit.HOST: ("num_postprocess_workers", "stream_interval", "disable_overlap_scheduler"),
}
PARAMETERS: Mapping[EngineKind, Mapping[Limit, tuple[str, ...]]] = {
    EngineKind.VLLM: _VLLM,
    EngineKind.SIMULATED: _VLLM,
    EngineKind.TENSORRT_LLM: _TENSORRT_LLM,
    EngineKind.TRITON: _TENSORRT_LLM,
}
"""What usually moves each limit, the likeliest first, by the engine's own names."""
