"""What an engine's arguments come to: a `SchedulerConfig` with every default filled in, or a refusal.

Defaults are vLLM 0.32's: `vllm serve --help=all` where it states one, `EngineArgs.get_batch_defaults` and
`EngineArgs._set_default_max_num_seqs_and_batched_tokens_args` (vllm/engine/arg_utils.py) for the batch limits, which
depend on the GPU, `SchedulerConfig` (vllm/config/scheduler.py) for refusals.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from autotune.models.shapes import GpuSpec, ModelShape
from autotune.records.spec import Args

GIB = 2**30
BIG_GPU_BYTES = 70 * GIB  # from here on, A100 excepted (vLLM PR 17885), vLLM's default batch limits are larger
WEIGHT_BYTES = {"bf16": 2.0, "fp8": 1.0, "int4": 0.56}  # 4 bits plus scales and zero points of groups of 128
KV_BYTES = {"fp8": 1.0, "int8": 1.0, "int4": 0.53, "nvfp4": 0.56, "turboquant": 0.5}
FP8_CAPABILITY = 89
MAX_GRAPH = 512
_SIZE = re.compile(r"^(\d+(?:\.\d+)?)\s*([kKmMgG]?)$")
_UNITS = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}

MODELLED = frozenset(
    {
        "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
        "block_size", "enable_prefix_caching", "enforce_eager", "async_scheduling", "tensor_parallel_size",
        "quantization", "dtype", "kv_cache_dtype", "gpu_memory_utilization", "max_model_len", "stream_interval",
        "optimization_level", "compilation_config", "max_cudagraph_capture_size", "num_gpu_blocks_override",
        "kv_cache_memory_bytes", "scheduler_reserve_full_isl", "performance_mode", "pipeline_parallel_size",
        "data_parallel_size",
    }
)  # fmt: skip


class RefusedConfig(ValueError):
    """The engine would not start with these arguments; the message is what vLLM's own says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerConfig:
    """One engine on one kind of GPU, resolved. `weights`: "bf16", "fp8" or "int4"; `kv_bytes`: bytes of one element."""

    shape: ModelShape
    gpu: GpuSpec
    tp: int = 1
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    block_size: int = 16
    prefix_caching: bool = True
    eager: bool = False
    async_scheduling: bool = True
    weights: str = "bf16"
    kv_bytes: float = 2.0
    gpu_memory_utilization: float = 0.92
    kv_cache_memory_bytes: int | None = None
    blocks_override: int | None = None
    stream_interval: int = 1
    optimization_level: int = 2
    max_graph: int = MAX_GRAPH
    reserve_full_input: bool = True
    no_evict: bool = False

    @property
    def weight_bytes(self) -> float:
        """Bytes of one weight of a layer."""
        return self.shape.dtype_bytes if self.weights == "bf16" else WEIGHT_BYTES[self.weights]


def from_vllm_args(args: Args, shape: ModelShape, gpu: GpuSpec) -> SchedulerConfig:
    """Resolve `args` (vLLM's names, underscores) with vLLM 0.32's defaults; raises RefusedConfig as vLLM would."""
    max_model_len = _max_model_len(args, shape)
    chunked = _flag(args, "enable_chunked_prefill", default=True)
    seqs, tokens = _batch_limits(args, gpu, max_model_len, chunked)
    level = _level(args.get("optimization_level"))
    config = SchedulerConfig(
        shape=shape,
        gpu=gpu,
        tp=_positive(args, "tensor_parallel_size", 1),
        max_model_len=max_model_len,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        chunked_prefill=chunked,
        long_prefill_token_threshold=_size(args.get("long_prefill_token_threshold") or 0),
        block_size=_positive(args, "block_size", 16),
        prefix_caching=_flag(args, "enable_prefix_caching", default=True),
        eager=_flag(args, "enforce_eager", default=False) or level == 0 or _no_graphs(args),
        async_scheduling=_flag(args, "async_scheduling", default=True),
        weights=_weights(args, shape),
        kv_bytes=_kv_bytes(args, shape),
        gpu_memory_utilization=float(args.get("gpu_memory_utilization") or 0.92),
        kv_cache_memory_bytes=_optional_size(args, "kv_cache_memory_bytes"),
        blocks_override=_optional_size(args, "num_gpu_blocks_override"),
        stream_interval=_positive(args, "stream_interval", 1),
        optimization_level=level,
        max_graph=_optional_size(args, "max_cudagraph_capture_size") or min(2 * seqs, MAX_GRAPH),
        reserve_full_input=_flag(args, "scheduler_reserve_full_isl", default=True),
    )
    _refuse(config, args)
    return config


def unmodelled(args: Args) -> list[str]:
    """Names among `args` that the simulation ignores: they change nothing in its figures."""
    return sorted(set(args) - MODELLED)


def _flag(args: Args, name: str, *, default: bool) -> bool:
    value = args.get(name)
    return default if value is None else bool(value)


def _size(value: object) -> int:
    """A count as vLLM reads it: 2048, "2k" (2000) or "2K" (2048)."""
    match = _SIZE.match(str(value).strip())
    if match is None:
        raise RefusedConfig(f"{value!r} is not a size: give a whole number, or one like 8k (8000) or 8K (8192)")
    return int(float(match[1]) * _UNITS[match[2]])


def _positive(args: Args, name: str, default: int) -> int:
    value = args.get(name)
    number = default if value is None else _size(value)
    if number < 1:
        raise RefusedConfig(f"{name} must be at least 1, but is {number}")
    return number


def _optional_size(args: Args, name: str) -> int | None:
    return None if args.get(name) is None else _positive(args, name, 1)


def _max_model_len(args: Args, shape: ModelShape) -> int:
    value = args.get("max_model_len")
    if value is None or value in ("auto", -1, "-1"):
        return shape.max_position
    length = _size(value)
    if length > shape.max_position:
        raise RefusedConfig(
            f"User-specified max_model_len ({length}) is greater than the derived max_model_len "
            f"(max_position_embeddings={shape.max_position} in model's config.json)."
        )
    return length


def _batch_limits(args: Args, gpu: GpuSpec, max_model_len: int, chunked: bool) -> tuple[int, int]:
    """max_num_seqs and max_num_batched_tokens: given, or what vLLM's API server would choose on this GPU."""
    large = gpu.memory_bytes >= BIG_GPU_BYTES and gpu.name != "a100"
    scale = 2 if args.get("performance_mode") == "throughput" else 1
    given_seqs, given_tokens = _optional_size(args, "max_num_seqs"), _optional_size(args, "max_num_batched_tokens")
    seqs = given_seqs or scale * (1024 if large else 256)
    tokens = given_tokens or scale * (8192 if large else 2048)
    if given_tokens is None:
        tokens = max(tokens, max_model_len) if not chunked else tokens
        tokens = min(tokens, seqs * max_model_len)
    if given_seqs is None:
        seqs = min(seqs, tokens)
    return seqs, tokens


def _level(value: object) -> int:
    """-O0 … -O3, given as 2, "2" or "O2"; vLLM's default is O2."""
    text = "2" if value is None else str(value).upper().removeprefix("-").removeprefix("O")
    if text not in ("0", "1", "2", "3"):
        raise RefusedConfig(f"optimization_level must be one of 0, 1, 2, 3, but is {value!r}")
    return int(text)


def _no_graphs(args: Args) -> bool:
    compilation = args.get("compilation_config")
    mode = compilation.get("cudagraph_mode") if isinstance(compilation, Mapping) else None
    return str(mode).upper() == "NONE" and mode is not None


def _weights(args: Args, shape: ModelShape) -> str:
    method = str(args.get("quantization")).lower()
    if method == "none":  # the default, or the word "None" on a command line
        return shape.weight_format
    return "fp8" if "fp8" in method or method == "modelopt" else "int4"


def _kv_bytes(args: Args, shape: ModelShape) -> float:
    dtype = str(args.get("kv_cache_dtype") or "auto")
    for prefix, size in KV_BYTES.items():
        if dtype.startswith(prefix):
            return size
    return shape.dtype_bytes if dtype == "auto" else 2.0


def _refuse(config: SchedulerConfig, args: Args) -> None:
    """Raise RefusedConfig for what vLLM's own validation refuses, and for what is not simulated."""
    for name in ("pipeline_parallel_size", "data_parallel_size"):
        if args.get(name) not in (None, 1):
            raise RefusedConfig(f"{name}={args[name]} is not simulated: only tensor_parallel_size is")
    for problem in (*_batch_problems(config), *_shape_problems(config)):
        raise RefusedConfig(problem)


def _batch_problems(config: SchedulerConfig) -> list[str]:
    tokens, seqs, length = config.max_num_batched_tokens, config.max_num_seqs, config.max_model_len
    problems = []
    if tokens < length and not config.chunked_prefill:
        problems.append(
            f"max_num_batched_tokens ({tokens}) is smaller than max_model_len ({length}). This effectively limits the "
            "maximum sequence length to max_num_batched_tokens and makes vLLM reject longer sequences. Please increase "
            "max_num_batched_tokens or decrease max_model_len."
        )
    if tokens < seqs:
        problems.append(f"max_num_batched_tokens ({tokens}) must be greater than or equal to max_num_seqs ({seqs}).")
    if config.long_prefill_token_threshold > length:
        problems.append(
            f"long_prefill_token_threshold ({config.long_prefill_token_threshold}) cannot be greater than the "
            f"max_model_len ({length})."
        )
    return problems


def _shape_problems(config: SchedulerConfig) -> list[str]:
    problems = []
    if config.shape.heads % config.tp:
        problems.append(
            f"Total number of attention heads ({config.shape.heads}) must be divisible by tensor parallel size "
            f"({config.tp})."
        )
    if config.block_size % 16:
        problems.append(
            f"Attention needs a block size that is a multiple of 16, but block_size is {config.block_size}."
        )
    if not 0 < config.gpu_memory_utilization <= 1:
        problems.append(f"GPU memory utilization must be above 0 and at most 1.0. Got {config.gpu_memory_utilization}.")
    if config.kv_bytes < config.shape.dtype_bytes and config.gpu.capability < FP8_CAPABILITY:
        problems.append(
            f"A quantised KV cache needs compute capability 8.9 or more; {config.gpu.name} has "
            f"{config.gpu.capability / 10}."
        )
    return problems
