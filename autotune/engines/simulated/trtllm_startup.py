"""The start-up of the stand-in for `trtllm-serve`: says what TensorRT-LLM would say, and fails where it would.

In: `Options`. Out: a `Launch`, ready to serve; or StartupFailure after the engine's own error lines. The KV cache is
made twice, as the real one is: a small one to measure with, then the one that stays.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from autotune.engines.simulated import logs, process
from autotune.engines.simulated import trtllm_logs as say
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.flags import Options
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.simulated.startup import Launch, broken
from autotune.engines.simulated.trtllm_options import read_options
from autotune.engines.tensorrt_llm.diagnosis import knowledge
from autotune.models.config import GIB, RefusedConfig, SchedulerConfig
from autotune.models.memory import MemoryPlan, StartupPhase, plan_memory, startup_failure
from autotune.models.shapes import gpu_names, gpu_of, model_names, shape_of
from autotune.models.trtllm_config import from_trtllm_args

_LOADING_RATIO, _WARMUP_RATIO = 0.7, 0.3  # how start-up seconds are split between weights and the rest
_FAILED = "RuntimeError: Executor worker returned error"
_NO_ROOM = (
    "RuntimeError: Executor creation failed due to insufficient GPU memory.\n"
    "The following component could not be created: "
)
_CAUSES = {
    StartupPhase.FREE_MEMORY: f"{_NO_ROOM}Initial KV cache (temporary for KV cache size estimation)",
    StartupPhase.PROFILE: f"{_NO_ROOM}Model resources created during usage",
    StartupPhase.KV_ALLOCATION: f"{_NO_ROOM}KV cache",
    StartupPhase.SAMPLER_WARMUP: f"{_NO_ROOM}Sampler",
}
"""By phase; the others say what CUDA says."""


def start(options: Options) -> Launch:
    """Go through the start-up; raises StartupFailure, and never returns under `hang_at_start`."""
    return started(options, read_options(options.serve, options.sim.faults))


def started(options: Options, args: dict[str, Any]) -> Launch:
    """The same with options that were read before."""
    faults = options.sim.faults
    launch = _resolve(options, args)
    process.leave_behind(faults)
    if "hang_at_start" in faults:
        process.hang()
    process.pass_time(faults.number("slow_start") + faults.number("binds_without_listening"))
    _fail_like(faults)
    return _initialise(launch)


def _resolve(options: Options, args: dict[str, Any]) -> Launch:
    serve, sim = options.serve, options.sim
    shape, gpu = shape_of(serve.model), gpu_of(sim.gpu, "tensorrt_llm")
    if shape is None:
        raise StartupFailure(
            f"OSError: {serve.model} is not a local folder and is not a valid model identifier: the stand-in needs a "
            f"folder with a config.json, or one of: {', '.join(model_names())}"
        )
    if gpu is None:
        raise StartupFailure(f"ValueError: unknown simulated GPU '{sim.gpu}'; there are: {', '.join(gpu_names())}")
    try:
        config = from_trtllm_args(args, shape, gpu)
    except RefusedConfig as refusal:
        logs.plain("pydantic_core._pydantic_core.ValidationError: 1 validation error for TorchLlmArgs")
        raise StartupFailure(f"  Value error, {refusal}") from refusal
    serve = replace(serve, values={**args, **serve.values})
    return Launch(serve=serve, sim=sim, config=config, memory=plan_memory(config))


def _fail_like(faults: Faults) -> None:
    """Fail with the example of a rule."""
    name = faults.text("fails_like")
    if name is None:
        return
    known = {rule.name: rule for rule in (*knowledge().rules, *knowledge().signs)}
    if name not in known:
        raise StartupFailure(f"ValueError: no rule is called '{name}'; there are: {', '.join(known)}")
    rule = known[name]
    say.error(f"Traceback (most recent call last):\n{rule.example_log}\n{rule.examples[0]}")
    raise StartupFailure(_FAILED)


def _initialise(launch: Launch) -> Launch:
    startup_s = launch.sim.startup_s / launch.sim.time_scale
    process.pass_time(startup_s * _LOADING_RATIO)
    _check(launch, StartupPhase.WEIGHTS, StartupPhase.FREE_MEMORY)
    say.write(f"Use {launch.memory.weights_bytes / GIB:.2f} GB for model weights.")
    logs.plain(f"Model init total -- {startup_s * _LOADING_RATIO:.2f}s")
    _measure(launch)
    process.pass_time(startup_s * _WARMUP_RATIO)
    _check(launch, StartupPhase.PROFILE, StartupPhase.SAMPLER_WARMUP)
    _say_graphs(launch.config)
    _check(launch, StartupPhase.GRAPH_CAPTURE, StartupPhase.KV_ALLOCATION)
    return _final(launch)


def _measure(launch: Launch) -> None:
    """The small KV cache: as many tokens as one step takes, and a block."""
    config = launch.config
    tokens = config.max_num_batched_tokens + config.block_size
    say.warn(
        f"Both free_gpu_memory_fraction and max_tokens are set (to 0.9 and {tokens}, respectively). "
        "The smaller value will be used."
    )
    _say_cache(config, tokens, launch.memory.kv_token_bytes)
    say.write("[Autotuner] Autotuning process starts ...")
    say.write("[Autotuner] Autotuning process ends")


def _final(launch: Launch) -> Launch:
    """The KV cache that stays. Sequences that it can't hold are shortened: the engine serves on, with less."""
    config, memory = broken(launch.config, launch.memory, launch.sim.faults)
    available = memory.kv_bytes / GIB
    say.write(
        "Peak memory during memory usage profiling (torch + non-torch): "
        f"{(memory.weights_bytes + memory.activation_bytes) / GIB:.2f} GiB, available KV cache memory when calculating "
        f"max tokens: {available:.2f} GiB, device total memory {memory.total_bytes / GIB:.2f} GiB"
    )
    say.write(f"Estimated max memory in KV cache : {available:.2f} GiB")
    length = _say_cache(config, memory.kv_tokens, memory.kv_token_bytes)
    return replace(launch, config=replace(config, max_model_len=length), memory=memory)


def _say_cache(config: SchedulerConfig, tokens: int, token_bytes: float) -> int:
    """Tell of a KV cache, and return the length of sequences with it."""
    length = min(config.max_model_len, tokens)
    if length < config.max_model_len:
        say.warn(f"Adjusted max_seq_len to {length}")
    say.runtime(f"Number of tokens per block: {config.block_size}.")
    size = tokens * token_bytes / GIB
    say.runtime(f"[MemUsageChange] Allocated {size:.2f} GiB for max tokens in paged KV cache ({tokens}).")
    say.write(
        f"max_seq_len={length}, max_num_requests={config.max_num_seqs}, "
        f"max_num_tokens={config.max_num_batched_tokens}, max_batch_size={config.max_num_seqs}"
    )
    return length


def _say_graphs(config: SchedulerConfig) -> None:
    if not config.eager:
        sizes = [1, 2, 4, *range(8, min(config.max_graph, config.max_num_seqs) + 1, 8)]
        say.write(f"Creating CUDA graph instances for {len(sizes)} batch sizes.")


def _check(launch: Launch, *phases: StartupPhase) -> None:
    """Fail as TensorRT-LLM does if memory runs out in one of these phases; too small a KV cache is no failure here."""
    config, memory = _with_whole_cache(*broken(launch.config, launch.memory, launch.sim.faults))
    failure = startup_failure(config, memory)
    if failure is None or failure.phase not in phases:
        return
    frame = "_capture_generation_cuda_graphs" if failure.phase is StartupPhase.GRAPH_CAPTURE else "create_py_executor"
    lines = (
        "Failed to initialize executor on rank 0:",
        "Traceback (most recent call last):",
        f'  File "py_executor_creator.py", line 9, in {frame}',
        _CAUSES.get(failure.phase, failure.cause),
    )
    say.error("\n".join(lines))
    raise StartupFailure(_FAILED)


def _with_whole_cache(config: SchedulerConfig, memory: MemoryPlan) -> tuple[SchedulerConfig, MemoryPlan]:
    return replace(config, max_model_len=min(config.max_model_len, memory.kv_tokens)), memory
