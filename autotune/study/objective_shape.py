"""File forms of an objective to records and back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from autotune.records.spec import (
    Bound,
    Direction,
    FixedLength,
    Length,
    LoadSpec,
    LogNormalLength,
    ObjectiveSpec,
    SessionSpec,
    Slo,
    TraceArrivals,
    UniformLength,
    WorkloadSpec,
)
from autotune.study.objective_forms import (
    AnyLength,
    AnySlo,
    CeilingForm,
    FloorForm,
    LoadForm,
    LogNormalForm,
    ObjectiveForm,
    SessionForm,
    UniformForm,
    WorkloadForm,
)

# --- form -> record -------------------------------------------------------------------------------------------------


def objective_of(form: ObjectiveForm, name: str, folder: Path) -> ObjectiveSpec:
    """Return the record of an objective; paths in it are relative to `folder`."""
    direction = Direction.MINIMIZE if form.maximize is None else Direction.MAXIMIZE
    return ObjectiveSpec(
        name=form.name or name,
        metric=form.maximize or form.minimize or "",
        direction=direction,
        slos=tuple(_slo(metric, slo) for metric, slo in form.slos.items()),
        workload=_workload(form.workload, folder),
        load=_load(form.load, folder),
        confidence=form.confidence,
        quality=None if form.quality is None else replace(form.quality, prompts=_placed(form.quality.prompts, folder)),
    )


def _slo(metric: str, form: AnySlo) -> Slo:
    if isinstance(form, FloorForm):
        return Slo(metric=metric, limit=form.min, bound=Bound.MIN)
    return Slo(metric=metric, limit=form.max if isinstance(form, CeilingForm) else form)


def _workload(form: WorkloadForm, folder: Path) -> WorkloadSpec:
    return WorkloadSpec(
        shape=form.shape,
        input_tokens=_length(form.input_tokens),
        output_tokens=_length(form.output_tokens),
        correlation=form.correlation,
        lengths=_placed(form.lengths, folder),
        prefix=form.prefix,
        sessions=None if form.sessions is None else _sessions(form.sessions),
        text=form.text,
        dataset=_placed(form.dataset, folder),
    )


def _placed(path: str | None, folder: Path) -> str | None:
    return None if path is None else str((folder / path).absolute())


def _sessions(form: SessionForm) -> SessionSpec:
    return SessionSpec(turns=_some_length(form.turns), think_s=form.think_s)


def _length(form: AnyLength | None) -> Length | None:
    return None if form is None else _some_length(form)


def _some_length(form: AnyLength) -> Length:
    if isinstance(form, UniformForm):
        return UniformLength(low=form.uniform[0], high=form.uniform[1])
    return form.lognormal if isinstance(form, LogNormalForm) else FixedLength(tokens=form)


def _load(form: LoadForm, folder: Path) -> LoadSpec:
    return LoadSpec(
        poisson_rps=form.poisson_rps,
        constant_rps=form.constant_rps,
        gamma=form.gamma,
        bursts=form.bursts,
        ramp=form.ramp,
        trace=None if form.trace is None else _trace(form.trace, folder),
        concurrency=form.concurrency,
        capacity=form.capacity_spec,
        duration_s=form.duration_s,
        warmup_s=form.warmup_s,
        max_requests=form.max_requests,
        repeats=form.repeats,
    )


def _trace(trace: TraceArrivals, folder: Path) -> TraceArrivals:
    return replace(trace, file=str((folder / trace.file).absolute()))


# --- record -> form, as plain data ----------------------------------------------------------------------------------


def objective_data(spec: ObjectiveSpec) -> dict[str, Any]:
    """Return the file form of an objective."""
    return {
        "name": spec.name,
        spec.direction.value: spec.metric,
        "slos": {slo.metric: {"min": slo.limit} if slo.bound is Bound.MIN else slo.limit for slo in spec.slos},
        "workload": _workload_data(spec.workload),
        "load": _load_data(spec.load),
        "confidence": spec.confidence,
        **({} if spec.quality is None else {"quality": asdict(spec.quality)}),
    }


def without_none(**fields: object) -> dict[str, Any]:
    """Return the fields that have a value."""
    return {name: value for name, value in fields.items() if value is not None}


def _load_data(spec: LoadSpec) -> dict[str, Any]:
    return {
        key: without_none(**value) if isinstance(value, dict) else value
        for key, value in asdict(spec).items()
        if value is not None
    }


def _workload_data(spec: WorkloadSpec) -> dict[str, Any]:
    sessions = spec.sessions
    return without_none(
        shape=spec.shape,
        input_tokens=_length_data(spec.input_tokens),
        output_tokens=_length_data(spec.output_tokens),
        correlation=spec.correlation or None,
        lengths=spec.lengths,
        prefix=spec.prefix and asdict(spec.prefix),
        sessions=sessions and {"turns": _length_data(sessions.turns), "think_s": sessions.think_s},
        text=None if spec.text == "random" else spec.text,
        dataset=spec.dataset,
    )


def _length_data(length: Length | None) -> int | Mapping[str, object] | None:
    if isinstance(length, LogNormalLength):
        return {"lognormal": asdict(length)}
    if isinstance(length, UniformLength):
        return {"uniform": [length.low, length.high]}
    return None if length is None else length.tokens
