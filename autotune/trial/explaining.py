"""A judged record comes in, and goes out with its diagnosis where it missed an SLO."""

from __future__ import annotations

from dataclasses import replace

from autotune.engines.nesting import nested
from autotune.measure.diagnosis import diagnose
from autotune.models.config import RefusedConfig, from_vllm_args
from autotune.models.facts import gpu_by_driver_name
from autotune.models.shapes import GpuSpec, gpu_of, shape_of
from autotune.models.steptime import communication_ratio
from autotune.records.spec import EngineKind, SimulateSpec, StudySpec
from autotune.records.trial import TrialRecord


def explained(record: TrialRecord, spec: StudySpec) -> TrialRecord:
    """Return the record with why it missed an SLO; as it is when it missed none."""
    if record.verdict is None:
        return record
    found = diagnose(
        record.verdict,
        record.measurements,
        engine=spec.engine.kind,
        resolved={**record.args, **record.resolved},
        communication_ratio=_communication_ratio(record, spec),
    )
    return replace(record, diagnosis=found)


def _communication_ratio(record: TrialRecord, spec: StudySpec) -> float | None:
    """By the model of the GPU, at the level's mean batch; None where model or GPU are not known."""
    running = max((m.counters.get("server_running_mean", 0.0) for m in record.measurements), default=0.0)
    shape, gpu = shape_of(spec.model), _gpu(record, spec)
    if spec.engine.kind in (EngineKind.TENSORRT_LLM, EngineKind.TRITON) or shape is None or gpu is None:
        return None
    try:
        return communication_ratio(from_vllm_args(nested(record.args), shape, gpu), max(1, round(running)))
    except RefusedConfig:
        return None


def _gpu(record: TrialRecord, spec: StudySpec) -> GpuSpec | None:
    if spec.simulated:
        return gpu_of((spec.engine.simulate or SimulateSpec()).gpu)
    names = set((record.versions.get("gpus") or "").split(", "))
    return gpu_by_driver_name(names.pop(), None) if len(names) == 1 else None
