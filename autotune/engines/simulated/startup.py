"""The start-up of the simulated server: resolves what it was told, logs what vLLM would log, and fails where it would.

In: `Options`. Out: a `Launch`, ready to serve; or StartupFailure after the engine's own error lines.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from autotune.engines.simulated import logs, process
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.flags import Options, ServeArgs, SimOptions
from autotune.engines.simulated.process import StartupFailure
from autotune.models.config import GIB, RefusedConfig, SchedulerConfig, from_vllm_args, unmodelled
from autotune.models.memory import MemoryPlan, StartupPhase, plan_memory, startup_failure
from autotune.models.shapes import gpu_names, gpu_of, model_names, shape_of

_LOADING_RATIO, _WARMUP_RATIO = 0.7, 0.3  # how start-up seconds are split between weights and the rest
_ENGINE_FAILED = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"
)
_SERVED = frozenset(  # flags that the server itself heeds, or that nothing simulated depends on
    {
        "model", "host", "port", "served_model_name", "api_key", "seed", "enable_force_include_usage",
        "enable_prompt_tokens_details", "uvicorn_log_level", "disable_uvicorn_access_log", "disable_log_stats",
        "load_format", "trust_remote_code",
    }
)  # fmt: skip
_FRAME = {
    StartupPhase.FREE_MEMORY: 'File "vllm/v1/worker/utils.py", line 741, in request_memory',
    StartupPhase.WEIGHTS: 'File "vllm/v1/worker/gpu_model_runner.py", line 5075, in load_model',
    StartupPhase.PROFILE: 'File "vllm/v1/worker/gpu_model_runner.py", line 6260, in profile_run',
    StartupPhase.KV_ALLOCATION: 'File "vllm/v1/core/kv_cache_utils.py", line 1010, in _check_enough_kv_cache_memory',
    StartupPhase.KV_TOO_SMALL: 'File "vllm/v1/core/kv_cache_utils.py", line 1030, in _check_enough_kv_cache_memory',
    StartupPhase.GRAPH_CAPTURE: 'File "vllm/v1/worker/gpu_model_runner.py", line 6550, in capture_model',
    StartupPhase.SAMPLER_WARMUP: 'File "vllm/v1/worker/gpu_model_runner.py", line 5990, in _dummy_sampler_run',
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What the server serves with."""

    serve: ServeArgs
    sim: SimOptions
    config: SchedulerConfig
    memory: MemoryPlan

    def cache_config(self) -> dict[str, object]:
        """The labels of vllm:cache_config_info, as the engine resolved them."""
        values, memory = self.serve.values, self.memory
        return {
            "_block_size_resolved": True,
            "block_size": self.config.block_size,
            "cache_dtype": values.get("kv_cache_dtype"),
            "enable_prefix_caching": self.config.prefix_caching,
            "gpu_memory_utilization": self.config.gpu_memory_utilization,
            "kv_cache_max_concurrency": memory.kv_tokens / self.config.max_model_len,
            "kv_cache_memory_bytes": self.config.kv_cache_memory_bytes,
            "kv_cache_size_tokens": memory.kv_tokens,
            "num_gpu_blocks": memory.blocks + 1,  # with vLLM's null block
            "num_gpu_blocks_override": self.config.blocks_override,
            "user_specified_block_size": "block_size" in self.serve.given,
        }


def announce(serve: ServeArgs) -> None:
    """Log what vLLM logs before it takes its port."""
    logs.banner(serve.model)
    arguments = {"model_tag": serve.model, **serve.given, "model": serve.model}
    logs.write(f"non-default args: {arguments}", source="api_utils.py:286")


def start(options: Options) -> Launch:
    """Go through the start-up; raises StartupFailure, and never returns under `hang_at_start`."""
    faults = options.sim.faults
    launch = _resolve(options)
    _log_config(launch)
    process.leave_behind(faults)
    if "hang_at_start" in faults:
        process.hang()
    process.pass_time(faults.number("slow_start") + faults.number("binds_without_listening"))
    _initialise(launch)
    return launch


def _resolve(options: Options) -> Launch:
    serve, sim = options.serve, options.sim
    shape, gpu = shape_of(serve.model), gpu_of(sim.gpu)
    if shape is None:
        known = ", ".join(model_names())
        raise StartupFailure(
            f"OSError: {serve.model} is not a local folder and is not a valid model identifier: the simulator needs a "
            f"folder with a config.json, or one of: {known}"
        )
    if gpu is None:
        raise StartupFailure(f"ValueError: unknown simulated GPU '{sim.gpu}'; there are: {', '.join(gpu_names())}")
    args = {name: value for name, value in serve.values.items() if value is not None}
    try:
        config = from_vllm_args(args, shape, gpu)
    except RefusedConfig as refusal:
        logs.plain("pydantic_core._pydantic_core.ValidationError: 1 validation error for SchedulerConfig")
        raise StartupFailure(f"  Value error, {refusal}") from refusal
    return Launch(serve=serve, sim=sim, config=config, memory=plan_memory(config))


# --- the engine core --------------------------------------------------------------------------------------------------


def _initialise(launch: Launch) -> None:
    startup_s = launch.sim.startup_s / launch.sim.time_scale
    loading_s, warmup_s = startup_s * _LOADING_RATIO, startup_s * _WARMUP_RATIO
    _check(launch, StartupPhase.FREE_MEMORY)
    _worker(f"Starting to load model {launch.serve.model}...", "gpu_model_runner.py:5040")
    process.pass_time(loading_s)
    _check(launch, StartupPhase.WEIGHTS)
    _log_loaded(launch, loading_s)
    process.pass_time(warmup_s)
    _check(launch, StartupPhase.PROFILE)
    _core(f"Available KV cache memory: {launch.memory.kv_bytes / GIB:.2f} GiB", "gpu_worker.py:760")
    _check(launch, StartupPhase.KV_ALLOCATION, StartupPhase.KV_TOO_SMALL)
    _log_kv_cache(launch)
    _check(launch, StartupPhase.GRAPH_CAPTURE)
    _log_graphs(launch)
    _check(launch, StartupPhase.SAMPLER_WARMUP)
    _core(f"init engine (profile, create kv cache, warmup model) took {warmup_s:.2f} s", "core.py:402")
    logs.write("Supported tasks: ['generate']", source="entry.py:136")
    logs.write(f"Starting vLLM server on http://{launch.serve.host}:{launch.serve.port}", source="entry.py:140")


def _check(launch: Launch, *phases: StartupPhase) -> None:
    """Fail as vLLM does if memory runs out in one of these phases."""
    config, memory = broken(launch.config, launch.memory, launch.sim.faults)
    failure = startup_failure(config, memory)
    if failure and failure.phase in phases:
        _log_failure(failure.phase, failure.cause)
        raise StartupFailure(_ENGINE_FAILED)


def broken(config: SchedulerConfig, memory: MemoryPlan, faults: Faults) -> tuple[SchedulerConfig, MemoryPlan]:
    """Configuration and memory such that the phase of the `oom` fault is the one that fails."""
    total, tokens = memory.total_bytes, config.max_model_len * 3 // 4
    configs: dict[str, dict[str, Any]] = {
        StartupPhase.FREE_MEMORY: {"gpu_memory_utilization": 1.0, "kv_cache_memory_bytes": None},
        StartupPhase.KV_ALLOCATION: {"blocks_override": None},
    }
    memories: dict[str, dict[str, Any]] = {
        StartupPhase.WEIGHTS: {"weights_bytes": 1.1 * total},
        StartupPhase.PROFILE: {"activation_bytes": total},
        StartupPhase.KV_ALLOCATION: {"kv_bytes": -1.2 * GIB},
        StartupPhase.KV_TOO_SMALL: {
            "kv_bytes": tokens * memory.kv_token_bytes,
            "blocks": tokens // memory.block_size,
        },
        StartupPhase.GRAPH_CAPTURE: {"graph_bytes": total},
        StartupPhase.SAMPLER_WARMUP: {"sampler_bytes": total},
    }
    phase = faults.text("oom") or ""
    return replace(config, **configs.get(phase, {})), replace(memory, **memories.get(phase, {}))


def _log_failure(phase: StartupPhase, cause: str) -> None:
    if phase is StartupPhase.WEIGHTS:
        logs.error(
            "Failed to load model - not enough GPU memory. Try lowering --gpu-memory-utilization to free memory for "
            "weights, increasing --tensor-parallel-size, or using --quantization. "
            f"(original error: {cause.removeprefix('torch.OutOfMemoryError: ')})",
            source="gpu_model_runner.py:5145",
            process="Worker",
        )
    lines = ("EngineCore failed to start.", "Traceback (most recent call last):", f"  {_FRAME[phase]}", cause)
    logs.error("\n".join(lines), source="core.py:1510", process="EngineCore")


# --- lines ------------------------------------------------------------------------------------------------------------


def _core(text: str, source: str) -> None:
    logs.write(text, source=source, process="EngineCore")


def _worker(text: str, source: str) -> None:
    logs.write(text, source=source, process="Worker")


def _log_config(launch: Launch) -> None:
    config = launch.config
    logs.write("Resolved architecture: LlamaForCausalLM", source="model.py:733")
    logs.write(f"Using max model len {config.max_model_len}", source="model.py:2152")
    if config.chunked_prefill:
        tokens = config.max_num_batched_tokens
        logs.write(f"Chunked prefill is enabled with max_num_batched_tokens={tokens}.", source="scheduler.py:307")
    if config.eager:
        eager = "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup."
        logs.warn(eager, source="vllm.py:1703")
    if ignored := sorted(set(unmodelled(launch.serve.given)) - _SERVED):
        logs.warn(f"The simulated engine accepts, but does not model: {', '.join(ignored)}", source="simulated")
    _core(f"Initializing a V1 LLM engine (v{logs.VERSION}) with config: {_config_text(launch)}", "core.py:133")


def _config_text(launch: Launch) -> str:
    """The resolved settings as vLLM prints them, in its order and spelling."""
    config, values = launch.config, launch.serve.values
    mode = "<CUDAGraphMode.NONE: 0>" if config.eager else "<CUDAGraphMode.FULL_AND_PIECEWISE: (2, 1)>"
    sizes = [] if config.eager else _capture_sizes(config.max_graph)
    compilation = (
        f"{{'mode': <CompilationMode.{'NONE: 0' if config.eager else 'VLLM_COMPILE: 3'}>, 'backend': 'inductor', "
        f"'cudagraph_mode': {mode}, 'cudagraph_capture_sizes': {sizes}, "
        f"'max_cudagraph_capture_size': {None if config.eager else config.max_graph}}}"
    )
    fields: dict[str, object] = {
        "model": repr(launch.serve.model),
        "speculative_config": None,
        "tokenizer": repr(launch.serve.model),
        "dtype": "torch.bfloat16",
        "max_seq_len": config.max_model_len,
        "load_format": values.get("load_format"),
        "tensor_parallel_size": config.tp,
        "pipeline_parallel_size": 1,
        "data_parallel_size": 1,
        "quantization": values.get("quantization"),
        "enforce_eager": config.eager,
        "kv_cache_dtype": values.get("kv_cache_dtype"),
        "device_config": "cuda",
        "seed": values.get("seed"),
        "served_model_name": launch.serve.served_name,
        "enable_prefix_caching": config.prefix_caching,
        "enable_chunked_prefill": config.chunked_prefill,
        "pooler_config": None,
        "compilation_config": compilation,
    }
    return ", ".join(f"{name}={value}" for name, value in fields.items())


def _capture_sizes(largest: int) -> list[int]:
    """vLLM's default sizes: 1, 2, 4, then multiples of 8 below 256, then of 16."""
    sizes = [1, 2, 4, *range(8, 256, 8), *range(256, largest + 1, 16)]
    return [size for size in sizes if size <= largest]


def _log_loaded(launch: Launch, took_s: float) -> None:
    _worker(f"Loading weights took {took_s:.2f} seconds", "default_loader.py:501")
    weights = f"Model loading took {launch.memory.weights_bytes / GIB:.2f} GiB memory and {took_s:.6f} seconds"
    _worker(weights, "gpu_model_runner.py:5150")


def _log_kv_cache(launch: Launch) -> None:
    tokens, length = launch.memory.kv_tokens, launch.config.max_model_len
    concurrency = f"Maximum concurrency for {length:,} tokens per request: {tokens / length:.2f}x"
    _core(f"GPU KV cache size: {tokens:,} tokens, {concurrency}", "kv_cache_utils.py:2327")


def _log_graphs(launch: Launch) -> None:
    if not launch.config.eager:
        took = f"Graph capturing finished in 0 secs, took {launch.memory.graph_bytes / GIB:.2f} GiB"
        _worker(took, "gpu_model_runner.py:6582")
