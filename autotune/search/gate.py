"""What is not worth a launch: candidates that a rule of the model, the memory model, a launch that failed or the
engine's own check excludes.

In: a candidate's arguments. Out: an `Exclusion`, or None. Each source must accept every configuration that ran: one
that would have excluded it is wrong about this engine, and is not asked again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import psutil

from autotune.engines.base import Engine, Preflight, Refusal
from autotune.engines.hardware import Gpu, host_versions, visible_gpus
from autotune.models.facts import Machine, gpu_by_driver_name, model_config, model_folder, plain_decoder
from autotune.models.feasibility import Setting, broken_rules
from autotune.models.fit import Fit
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.records.spec import Args, EngineKind, ObjectiveSpec, SimulateSpec, StudySpec
from autotune.records.trial import Failure, Fault, Outcome, Phase, TrialRecord
from autotune.search.bounds import Bounds

VLLM_ARGUMENTS = (EngineKind.VLLM, EngineKind.SIMULATED)  # what rules and memory model read


class Source(StrEnum):
    """Who excluded a candidate."""

    SPACE = "space rules"
    MODEL = "model rules"
    MEMORY = "memory model"
    BOUND = "learned bound"
    PREFLIGHT = "engine's own check"
    CHECKPOINT = "preparation of its checkpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class Exclusion:
    source: Source
    failure: Failure


@dataclass(slots=True, kw_only=True)
class Gate:
    """Made by `make_gate`. It changes with what is learned: `ran` is told of every record."""

    model: Callable[[Args], str | None] | None
    memory: Fit | None
    preflight: Preflight | None
    bounds: Bounds | None = None
    tell: Callable[[str], None]
    _launched: list[tuple[Args, Mapping[str, Any]]] = field(default_factory=list)
    _to_check: list[Args] = field(default_factory=list)

    def exclude(self, args: Args) -> Exclusion | None:
        """Return who refuses `args`, and why; None when they are worth a launch."""
        self._check_sources()
        return next((exclusion for source in self._sources() if (exclusion := self._ask(source, args))), None)

    def ran(self, record: TrialRecord) -> None:
        """Learn from a record: what it measured can be launched; where it found no room, worse has none either."""
        if self.bounds is not None:
            self.bounds = self.bounds.learned(record)
        if not record.outcome.measured:
            return
        self._to_check.append(record.args)
        self._launched.append((record.args, record.resolved))
        if self.memory is not None:
            self.memory = self.memory.calibrated(self._launched)

    def _sources(self) -> tuple[Source, ...]:
        return (Source.MODEL, Source.MEMORY, Source.BOUND, Source.PREFLIGHT)

    def _ask(self, source: Source, args: Args) -> Exclusion | None:
        match source:
            case Source.MODEL if self.model is not None:
                return _refused(source, Outcome.BAD_CONFIG, self.model(args))
            case Source.MEMORY if self.memory is not None:
                return _refused(source, Outcome.OOM_STARTUP, self.memory.too_large(args))
            case Source.BOUND if self.bounds is not None:
                return _refused(source, Outcome.OOM_STARTUP, self.bounds.excludes(args))
            case Source.PREFLIGHT if self.preflight is not None:
                answer = self.preflight.ask(args)
                return Exclusion(source=source, failure=answer.failure) if isinstance(answer, Refusal) else None
        return None

    def _check_sources(self) -> None:
        while self._to_check:
            args = self._to_check.pop()
            for source in self._sources():
                if exclusion := self._ask(source, args):
                    self._drop(source, exclusion.failure.cause)

    def _drop(self, source: Source, why: str) -> None:
        match source:
            case Source.MODEL:
                self.model = None
            case Source.MEMORY:
                self.memory = None
            case Source.BOUND:
                self.bounds = None
            case Source.PREFLIGHT:
                self.preflight = None
        self.tell(f"{source.value}: not used any more, as a configuration that runs would have been excluded: {why}")


def _refused(source: Source, outcome: Outcome, why: str | None) -> Exclusion | None:
    if why is None:
        return None
    failure = Failure(outcome=outcome, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=why, remedy=_REMEDIES[source])
    return Exclusion(source=source, failure=failure)


_REMEDIES = {
    Source.MODEL: "add a rule to the search space, so that such candidates are not proposed",
    Source.MEMORY: "leave more memory, or take less: gpu_memory_utilization, max_model_len, tensor_parallel_size",
    Source.BOUND: "leave more memory, or take less: gpu_memory_utilization, max_model_len, tensor_parallel_size",
}


# --- what is known ----------------------------------------------------------------------------------------------------


def make_gate(
    spec: StudySpec, engine: Engine, gpus: Sequence[str], preflight: Preflight | None, tell: Callable[[str], None]
) -> Gate:
    """Return a gate that knows as much as can be known of the study's model and machine; `gpus` are the engine's."""
    if spec.engine.kind not in VLLM_ARGUMENTS:
        return Gate(model=None, memory=None, preflight=preflight, tell=tell)
    gpu = gpu_of_study(spec, engine)
    env = {**os.environ, **spec.engine.env}
    config = model_config(model_folder(spec.model, env))
    shape = shape_of(spec.model)
    known = config or (_as_config(shape) if shape else {})
    machine = Machine(gpus=len(gpus), gpu=gpu, host_memory_bytes=psutil.virtual_memory().total)
    stretch = env.get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0") not in ("", "0")

    def rules(args: Args) -> str | None:
        setting = Setting(
            args=args,
            config=known,
            machine=machine,
            longest_request_tokens=longest_request_tokens(spec.objective),
            may_stretch=stretch,
        )
        return next(broken_rules(setting), None)

    countable = shape is not None and (config is None or spec.simulated or plain_decoder(config))
    memory = Fit(shape=shape, gpu=gpu) if shape is not None and gpu is not None and countable else None
    bounds = Bounds(
        versions={**host_versions(), **engine.versions()}, plain_decoder=config is None or plain_decoder(config)
    )
    return Gate(model=rules, memory=memory, bounds=bounds, preflight=preflight, tell=tell)


def longest_request_tokens(objective: ObjectiveSpec) -> int | None:
    """Return the longest prompt plus output that the workload can hold; None where only a file tells."""
    longest = objective.workload.longest_tokens
    return None if longest is None else sum(longest)


def gpu_of_study(spec: StudySpec, engine: Engine) -> GpuSpec | None:
    """Return the kind of GPU that the engine runs on; None for a CPU, kinds that the table lacks, and a mixture."""
    if spec.simulated:
        return gpu_of((spec.engine.simulate or SimulateSpec()).gpu)
    return common_gpu(engine.versions().get("cuda"), visible_gpus(spec.hardware.gpus))


def common_gpu(cuda: str | None, gpus: Sequence[Gpu]) -> GpuSpec | None:
    """Return what all `gpus` are. An engine built without `cuda` runs on the CPU, whatever else there is."""
    found = [gpu_by_driver_name(gpu.name, gpu.memory_bytes) for gpu in gpus]
    return found[0] if cuda and found and all(gpu == found[0] for gpu in found) else None


def _as_config(shape: ModelShape) -> Mapping[str, Any]:
    return {
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "max_position_embeddings": shape.max_position,
    }
