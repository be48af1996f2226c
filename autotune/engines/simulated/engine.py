"""The simulated engine: vLLM on a GPU that isn't there. Same arguments, same refusals, numbers from a model.

`simulate.face: virtual` (the default) passes no time at all; `server` starts the stand-in process of this package
through the same keeper, load client and stop ladder as a real vLLM.
"""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from autotune.engines.base import LaunchError, Preflight, Refusal, Resolved, Server
from autotune.engines.containers.runline import container_problems
from autotune.engines.nesting import nested
from autotune.engines.simulated.virtual import Launch, run_level, seed_of
from autotune.engines.vllm.diagnosis import diagnose
from autotune.engines.vllm.engine import VllmEngine, argument_problems
from autotune.engines.vllm.flags import documented_defaults
from autotune.engines.vllm.incumbent import read_incumbent
from autotune.errors import Problem
from autotune.models.compiled import compile_kernel
from autotune.models.config import RefusedConfig, SchedulerConfig, from_vllm_args, unmodelled
from autotune.models.memory import MemoryPlan, plan_memory, startup_failure
from autotune.models.shapes import gpu_names, gpu_of, model_names, shape_of
from autotune.models.simulation import SimResult, simulate, trace_of
from autotune.models.startup import compile_key, startup_time
from autotune.records.spec import Args, EngineKind, SimulateSpec, StudySpec
from autotune.records.trial import (
    Candidate,
    Cleanup,
    Endpoint,
    Failure,
    Fault,
    LevelPlan,
    LevelRecord,
    Outcome,
    Phase,
)

SERVER_COMMAND = (sys.executable, "-m", "autotune.engines.simulated")
CONTAINER_COMMAND = ("python3", *SERVER_COMMAND[1:])  # of an image that has autotune


class SimulatedEngine:
    """Follows `engines.base.Engine`."""

    kind = EngineKind.SIMULATED
    simulated = True

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self._simulate = spec.engine.simulate or SimulateSpec()
        self._server_face = server_engine(spec) if self._simulate.face == "server" else None
        self._compiled: set[tuple[object, ...]] = set()  # what torch.compile would have cached by now

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        container = spec.engine.container
        return [
            *argument_problems(spec),
            *_machine_problems(spec),
            *(container_problems(container) if container else ()),
        ]

    def launch(
        self,
        candidate: Candidate,
        *,
        trial_dir: Path,
        gpus: Sequence[str],
        on_phase: Callable[[str], None],
    ) -> AbstractContextManager[Server]:
        if self._server_face is not None:
            return self._server_face.launch(candidate, trial_dir=trial_dir, gpus=gpus, on_phase=on_phase)
        return self._launch(candidate, trial_dir.name, len(gpus), on_phase)

    @contextmanager
    def _launch(
        self, candidate: Candidate, trial: str, gpus: int, on_phase: Callable[[str], None]
    ) -> Iterator[VirtualVllm]:
        config, memory = self._start(candidate.args, gpus)
        if not self._compiled:
            on_phase("loading the simulator (compiling it takes 15 s, once per installation)")
            compile_simulator()
        key = compile_key(config)
        startup_s = startup_time(
            config, memory, compile_cold=key not in self._compiled, pages_cold=not self._compiled
        ).total_s
        self._compiled.add(key)
        seed = seed_of(self._spec.seed, candidate.fingerprint, trial)
        server = VirtualVllm(self._spec, Launch(config=config, seed=seed), memory, candidate.args, startup_s)
        try:
            yield server
        finally:
            server.close()

    def _start(self, args: Args, gpus: int) -> tuple[SchedulerConfig, MemoryPlan]:
        """Resolve the arguments and find room for them; raises LaunchError as vLLM would fail."""
        try:
            config = resolve(self._spec, args)
        except RefusedConfig as refusal:
            raise _launch_error(f"Value error, {refusal}", Outcome.BAD_CONFIG) from refusal
        if config.tp > max(1, gpus):
            raise _launch_error(
                f"Value error, World size ({config.tp}) is larger than the number of available GPUs ({max(1, gpus)}).",
                Outcome.BAD_CONFIG,
            )
        memory = plan_memory(config)
        failure = startup_failure(config, memory)
        if failure is not None:
            raise _launch_error(failure.cause, Outcome.OOM_STARTUP)
        return config, memory

    def preflight(
        self,
        *,
        gpus: Sequence[str],  # noqa: ARG002  the simulated ones
        tell: Callable[[str], None],  # noqa: ARG002  it can always be asked
    ) -> AbstractContextManager[Preflight | None]:
        return nullcontext(SimulatedPreflight(self._spec))

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def versions(self) -> Mapping[str, str | None]:
        return {
            **(self._server_face.containers_versions() if self._server_face is not None else {}),
            "simulated_engine": f"vLLM 0.32 on {self._simulate.gpu}, {self._simulate.face} face",
            "numba": version("numba"),
            "numpy": version("numpy"),
        }

    def defaults(self) -> Args:
        return documented_defaults()

    def read_incumbent(self, text: str) -> Args:
        return read_incumbent(text)


def server_engine(spec: StudySpec) -> VllmEngine:
    """The `server` face: the engine class of the real vLLM, with the stand-in of this package as its command."""
    simulated = spec.engine.simulate or SimulateSpec()
    env = {
        **spec.engine.env,
        "AUTOTUNE_SIM_GPU": simulated.gpu,
        "AUTOTUNE_SIM_TIME_SCALE": str(simulated.time_scale),
        "AUTOTUNE_SIM_FAULTS": ",".join(simulated.faults),
    }
    default = CONTAINER_COMMAND if spec.engine.container else SERVER_COMMAND
    engine = replace(spec.engine, command=spec.engine.command or default, env=env)
    return VllmEngine(replace(spec, engine=engine), kind=EngineKind.SIMULATED, simulated=True)


def resolve(spec: StudySpec, args: Args) -> SchedulerConfig:
    """What the study's engine makes of `args`; raises RefusedConfig. The study's model and GPU must be known."""
    shape, gpu = shape_of(spec.model), gpu_of((spec.engine.simulate or SimulateSpec()).gpu)
    if shape is None or gpu is None:
        raise RefusedConfig(f"nothing is known of {spec.model!r} or its GPU")
    return from_vllm_args(nested(args), shape, gpu)


def _machine_problems(spec: StudySpec) -> Iterator[Problem]:
    simulated = spec.engine.simulate or SimulateSpec()
    if gpu_of(simulated.gpu) is None:
        yield Problem(
            path=("engine", "simulate", "gpu"),
            message=f"no constants for a GPU called {simulated.gpu!r}",
            hint=f"one of {', '.join(gpu_names())}",
        )
    if shape_of(spec.model) is None:
        yield Problem(
            path=("model",),
            message=f"the shape of {spec.model!r} is not known",
            hint=f"give a folder with the model's config.json, or one of {', '.join(model_names())}",
        )
    if simulated.faults and simulated.face == "virtual":
        yield Problem(
            path=("engine", "simulate", "faults"),
            message="faults need a process to have them",
            hint="set simulate.face to server",
        )


def _launch_error(line: str, outcome: Outcome) -> LaunchError:
    """A failed launch as the log of vLLM would have told it; what its rules don't know is `outcome`."""
    return LaunchError(_failure(line, outcome), log_tail=(line,), cleanup=gone())


def _failure(line: str, outcome: Outcome) -> Failure:
    failure = diagnose(1, Phase.LAUNCH, line)
    if failure.fault is not Fault.CANDIDATE or failure.outcome is Outcome.UNKNOWN:
        # In simulation there is no neighbour that could have taken the memory: it is the candidate's own doing.
        failure = replace(failure, outcome=outcome, fault=Fault.CANDIDATE, cause=line)
    return failure


@dataclass(frozen=True, slots=True)
class SimulatedPreflight:
    """Follows `engines.base.Preflight`: what vLLM's configuration would refuse, by the model's own rules."""

    spec: StudySpec

    def ask(self, args: Args) -> Refusal | Resolved:
        try:
            config = resolve(self.spec, args)
        except RefusedConfig as refusal:
            return Refusal(failure=_failure(f"Value error, {refusal}", Outcome.BAD_CONFIG))
        return Resolved(settings=_settings(config))


def _settings(config: SchedulerConfig) -> dict[str, Any]:
    return {
        "max_model_len": config.max_model_len,
        "max_num_seqs": config.max_num_seqs,
        "max_num_batched_tokens": config.max_num_batched_tokens,
        "block_size": config.block_size,
        "tensor_parallel_size": config.tp,
        "gpu_memory_utilization": config.gpu_memory_utilization,
        "enable_prefix_caching": config.prefix_caching,
        "enable_chunked_prefill": config.chunked_prefill,
        "async_scheduling": config.async_scheduling,
        "enforce_eager": config.eager,
    }


def gone() -> Cleanup:
    """What is left of a launch that was none."""
    return Cleanup(left_processes=0, port_free=True, stop_s=0.0, how="simulated: no process was started")


def compile_simulator() -> None:
    """Make numba compile the kernel, or load it from its cache, outside any measured level."""
    compile_kernel()
    shape, gpu = shape_of("autotune/tiny"), gpu_of("h100")
    if shape is not None and gpu is not None:
        simulate(trace_of([8], 2), from_vllm_args({}, shape, gpu))


class VirtualVllm:
    """Follows `engines.base.VirtualServer`: it measures itself, since in virtual time nobody else can."""

    def __init__(self, spec: StudySpec, launch: Launch, memory: MemoryPlan, args: Args, startup_s: float) -> None:
        self._spec = spec
        self._launch = launch
        self._memory = memory
        self._args = args
        self._startup_s = startup_s
        self._results: list[SimResult] = []
        self._cleanup: Cleanup | None = None

    def run_level(self, plan: LevelPlan) -> LevelRecord:
        record, result = run_level(self._launch, plan, len(self._results))
        self._results.append(result)
        return record

    @property
    def endpoint(self) -> Endpoint:
        """A name for records; nothing listens there."""
        return Endpoint(host="virtual", port=0, model_name=self._spec.model)

    @property
    def startup_s(self) -> float:
        return self._startup_s

    @property
    def argv(self) -> tuple[str, ...]:
        return ()

    @property
    def vocab_size(self) -> int | None:
        return self._launch.config.shape.vocab

    @property
    def max_model_len(self) -> int | None:
        return self._launch.config.max_model_len

    @property
    def cleanup(self) -> Cleanup | None:
        return self._cleanup

    def close(self) -> None:
        """Note that the launch is over."""
        self._cleanup = gone()

    def resolved(self) -> Mapping[str, Any]:
        config, memory = self._launch.config, self._memory
        return {
            **_settings(config),
            "kv_cache_tokens": memory.kv_tokens,
            "num_gpu_blocks": memory.blocks + 1,  # with vLLM's null block
            "kv_cache_max_concurrency": memory.kv_tokens / config.max_model_len,
        }

    def warnings(self) -> tuple[str, ...]:
        ignored = unmodelled(self._args)
        return (f"not simulated, so without effect: {', '.join(ignored)}",) if ignored else ()

    def metrics(self) -> Mapping[str, float]:
        """vLLM's names, summed over the levels run so far."""
        results = self._results
        return {
            "vllm:num_preemptions_total": float(sum(r.preemptions for r in results)),
            "vllm:prefix_cache_queries_total": float(sum(r.queried_tokens for r in results)),
            "vllm:prefix_cache_hits_total": float(sum(r.hit_tokens for r in results)),
            "vllm:generation_tokens_total": float(sum(r.produced_tokens for r in results)),
            "vllm:num_requests_running": 0.0,
            "vllm:num_requests_waiting": 0.0,
            "vllm:kv_cache_usage_perc": results[-1].kv_peak_ratio if results else 0.0,
        }

    def exit_code(self) -> int | None:
        return None

    def log_tail(self, lines: int) -> tuple[str, ...]:
        memory = self._memory
        steps, preemptions = (sum(getattr(r, name) for r in self._results) for name in ("steps", "preemptions"))
        text = (
            f"simulated: GPU KV cache size: {memory.kv_tokens:,} tokens",
            f"simulated: {len(self._results)} levels, {steps:,} scheduler steps, {preemptions:,} preemptions",
        )
        return text[-lines:] if lines > 0 else ()

    def failure(self, phase: Phase) -> Failure | None:  # noqa: ARG002 - it never dies
        return None
