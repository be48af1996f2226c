"""File forms to records and back: what a user may write in several ways has one shape as a record."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autotune.records.spec import (
    Args,
    Bound,
    Choice,
    Direction,
    Domain,
    EngineSpec,
    FixedLength,
    FloatRange,
    IntRange,
    Length,
    LogNormalLength,
    ObjectiveSpec,
    ParameterSpec,
    Slo,
    SpaceSpec,
    StudySpec,
    UniformLength,
    WorkloadSpec,
)
from autotune.study.forms import (
    AnyLength,
    AnyParameter,
    AnySlo,
    CeilingForm,
    EngineForm,
    FloatForm,
    FloorForm,
    IntForm,
    LogNormalForm,
    ObjectiveForm,
    SpaceForm,
    StudyForm,
    UniformForm,
    WorkloadForm,
)

# --- form -> record -------------------------------------------------------------------------------------------------


def study_of(form: StudyForm, *, space: SpaceSpec, objective: ObjectiveSpec, incumbent: Args | None) -> StudySpec:
    """Return the record of a study whose references are resolved."""
    return StudySpec(
        name=form.name,
        model=form.model,
        engine=_engine(form.engine),
        search_space=space,
        objective=objective,
        hardware=form.hardware,
        incumbent=incumbent,
        budget=form.budget,
        sampler=form.sampler,
        seed=form.seed,
        storage=form.storage,
        quality=form.quality,
    )


def _engine(form: EngineForm) -> EngineSpec:
    command = shlex.split(form.command) if isinstance(form.command, str) else form.command or ()
    return EngineSpec(
        kind=form.kind,
        command=tuple(command),
        args=form.args,
        env=form.env,
        startup_timeout_s=form.startup_timeout_s,
        simulate=form.simulate,
    )


def space_of(form: SpaceForm, name: str) -> SpaceSpec:
    """Return the record of a search space; `name` is what it is called when the file doesn't say."""
    return SpaceSpec(
        name=form.name or name,
        engine=form.engine,
        parameters=tuple(_parameter(key, value) for key, value in form.parameters.items()),
        derived=form.derived,
        rules=tuple(form.rules),
    )


def _parameter(name: str, form: AnyParameter) -> ParameterSpec:
    return ParameterSpec(
        name=name, domain=_domain(form), when=form.when, why=form.why, changes_output=form.changes_output
    )


def _domain(form: AnyParameter) -> Domain:
    if isinstance(form, IntForm):
        return IntRange(low=form.int_[0], high=form.int_[1], log=form.log, step=form.step)
    if isinstance(form, FloatForm):
        return FloatRange(low=form.float_[0], high=form.float_[1], log=form.log, step=form.step)
    return Choice(values=tuple(form.choice))


def objective_of(form: ObjectiveForm, name: str, folder: Path) -> ObjectiveSpec:
    """Return the record of an objective; a dataset's path is relative to `folder`."""
    direction = Direction.MINIMIZE if form.maximize is None else Direction.MAXIMIZE
    return ObjectiveSpec(
        name=form.name or name,
        metric=form.maximize or form.minimize or "",
        direction=direction,
        slos=tuple(_slo(metric, slo) for metric, slo in form.slos.items()),
        workload=_workload(form.workload, folder),
        load=form.load,
        confidence=form.confidence,
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
        prefix=form.prefix,
        dataset=None if form.dataset is None else str((folder / form.dataset).absolute()),
    )


def _length(form: AnyLength | None) -> Length | None:
    if isinstance(form, UniformForm):
        return UniformLength(low=form.uniform[0], high=form.uniform[1])
    if isinstance(form, LogNormalForm):
        return form.lognormal
    return None if form is None else FixedLength(tokens=form)


# --- record -> form, as plain data ----------------------------------------------------------------------------------


def study_data(spec: StudySpec) -> dict[str, Any]:
    """Return the file form of a study, everything inline and defaults left out where they are None."""
    return _without_none(
        name=spec.name,
        model=spec.model,
        engine=_engine_data(spec.engine),
        hardware=None if spec.hardware.gpus is None else {"gpus": list(spec.hardware.gpus)},
        incumbent=None if spec.incumbent is None else dict(spec.incumbent),
        search_space=space_data(spec.search_space),
        objective=objective_data(spec.objective),
        budget=_without_none(trials=spec.budget.trials, hours=spec.budget.hours),
        sampler={"kind": spec.sampler.kind},
        seed=spec.seed,
        storage=spec.storage,
        quality=spec.quality,
    )


def _without_none(**fields: object) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def _engine_data(spec: EngineSpec) -> dict[str, Any]:
    simulate = spec.simulate
    return _without_none(
        kind=spec.kind.value,
        command=list(spec.command) or None,
        args=dict(spec.args),
        env=dict(spec.env),
        startup_timeout_s=spec.startup_timeout_s,
        simulate=simulate
        and {
            "gpu": simulate.gpu,
            "face": simulate.face,
            "time_scale": simulate.time_scale,
            "faults": list(simulate.faults),
        },
    )


def space_data(spec: SpaceSpec) -> dict[str, Any]:
    """Return the file form of a search space."""
    return {
        "name": spec.name,
        "engine": spec.engine.value,
        "parameters": {parameter.name: _parameter_data(parameter) for parameter in spec.parameters},
        "derived": dict(spec.derived),
        "rules": list(spec.rules),
    }


def _parameter_data(spec: ParameterSpec) -> dict[str, Any]:
    return _domain_data(spec.domain) | _without_none(
        when=spec.when, why=spec.why or None, changes_output=spec.changes_output or None
    )


def _domain_data(domain: Domain) -> dict[str, Any]:
    if isinstance(domain, Choice):
        return {"choice": list(domain.values)}
    key = "int" if isinstance(domain, IntRange) else "float"
    step = None if domain.step == 1 and key == "int" else domain.step
    return _without_none(**{key: [domain.low, domain.high], "log": domain.log or None, "step": step})


def objective_data(spec: ObjectiveSpec) -> dict[str, Any]:
    """Return the file form of an objective."""
    load = spec.load
    return {
        "name": spec.name,
        spec.direction.value: spec.metric,
        "slos": {slo.metric: {"min": slo.limit} if slo.bound is Bound.MIN else slo.limit for slo in spec.slos},
        "workload": _workload_data(spec.workload),
        "load": _without_none(
            poisson_rps=load.poisson_rps,
            concurrency=load.concurrency,
            duration_s=load.duration_s,
            warmup_s=load.warmup_s,
            max_requests=load.max_requests,
            repeats=load.repeats,
        ),
        "confidence": spec.confidence,
    }


def _workload_data(spec: WorkloadSpec) -> dict[str, Any]:
    prefix = spec.prefix
    return _without_none(
        shape=spec.shape,
        input_tokens=_length_data(spec.input_tokens),
        output_tokens=_length_data(spec.output_tokens),
        prefix=prefix and {"tokens": prefix.tokens, "groups": prefix.groups},
        dataset=spec.dataset,
    )


def _length_data(length: Length | None) -> int | Mapping[str, object] | None:
    if isinstance(length, LogNormalLength):
        fields = {"median": length.median, "sigma": length.sigma, "low": length.low, "high": length.high}
        return {"lognormal": fields}
    if isinstance(length, UniformLength):
        return {"uniform": [length.low, length.high]}
    return None if length is None else length.tokens
