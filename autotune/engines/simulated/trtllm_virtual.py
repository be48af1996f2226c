"""TensorRT-LLM in virtual time: the stand-in's scheduler and memory without a process, a socket or a second passed.

Same arguments and refusals as the stand-in that is a server (`trtllm_startup`), same clock as vLLM's virtual face, so
that the two can be set side by side.
"""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from autotune.engines.base import LaunchError, Server
from autotune.engines.nesting import nested
from autotune.engines.simulated.engine import VirtualVllm, compile_simulator, gone
from autotune.engines.simulated.virtual import Launch, seed_of
from autotune.models.config import RefusedConfig, SchedulerConfig
from autotune.models.memory import plan_memory, startup_failure
from autotune.models.shapes import gpu_of, shape_of
from autotune.models.startup import startup_time
from autotune.models.trtllm_config import from_trtllm_args
from autotune.records.spec import SimulateSpec, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase


@contextmanager
def launch_virtual(
    spec: StudySpec, candidate: Candidate, *, trial: str, gpus: int, cold: bool, on_phase: Callable[[str], None]
) -> Iterator[Server]:
    """Yield a server in virtual time, as `Engine.launch` does; `cold`: whether its weights are read from disk. Raises
    LaunchError."""
    config = _config(spec, candidate)
    if config.tp > max(1, gpus):
        raise _refused(f"tensor_parallel_size {config.tp} needs more GPUs than {max(1, gpus)}", Outcome.BAD_CONFIG)
    memory = plan_memory(config)
    if (failure := startup_failure(config, memory)) is not None:
        raise _refused(failure.cause, Outcome.OOM_STARTUP)
    longest = spec.objective.workload.longest_tokens
    if longest is not None and memory.kv_tokens < sum(longest):
        cause = f"the KV cache has room for {memory.kv_tokens} tokens, a request may have {sum(longest)}"
        raise _refused(cause, Outcome.OOM_STARTUP)
    if cold:
        on_phase("loading the simulator (compiling it takes 15 s, once per installation)")
        compile_simulator()
    startup_s = startup_time(config, memory, compile_cold=False, pages_cold=cold).total_s
    launch = Launch(config=config, seed=seed_of(spec.seed, candidate.fingerprint, trial))
    server = VirtualTrtLlm(spec, launch, memory, candidate.args, startup_s)
    try:
        yield server
    finally:
        server.close()


class VirtualTrtLlm(VirtualVllm):
    """Measures itself, and tells its settings by TensorRT-LLM's names."""

    def resolved(self) -> Mapping[str, Any]:
        config, memory = self._launch.config, self._memory
        return {
            "max_seq_len": config.max_model_len,
            "max_batch_size": config.max_num_seqs,
            "max_num_tokens": config.max_num_batched_tokens,
            "tensor_parallel_size": config.tp,
            "enable_chunked_prefill": config.chunked_prefill,
            "kv_cache_tokens": memory.kv_tokens,
        }

    def warnings(self) -> tuple[str, ...]:
        return ()


def _config(spec: StudySpec, candidate: Candidate) -> SchedulerConfig:
    shape, gpu = shape_of(spec.model), gpu_of((spec.engine.simulate or SimulateSpec()).gpu, "tensorrt_llm")
    if shape is None or gpu is None:
        raise _refused(f"nothing is known of {spec.model!r} or its GPU", Outcome.BAD_CONFIG)
    try:
        return from_trtllm_args(nested(candidate.args), shape, gpu)
    except RefusedConfig as refusal:
        raise _refused(str(refusal), Outcome.BAD_CONFIG) from refusal


def _refused(cause: str, outcome: Outcome) -> LaunchError:
    failure = Failure(outcome=outcome, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=cause)
    return LaunchError(failure, log_tail=(cause,), cleanup=gone())
