"""File forms to records and back: what a user may write in several ways has one shape as a record."""

from __future__ import annotations

import shlex
from dataclasses import asdict, replace
from typing import Any

from autotune.records.spec import (
    Args,
    Choice,
    ContainerSpec,
    Domain,
    EngineEntry,
    EngineKind,
    EngineSpec,
    FinalsSpec,
    FloatRange,
    HardwareSpec,
    IntRange,
    ObjectiveSpec,
    ParameterSpec,
    PriceSpec,
    SamplerSpec,
    SpaceSpec,
    StudySpec,
)
from autotune.study.forms import AnyParameter, EngineForm, FloatForm, IntForm, SpaceForm, StudyForm
from autotune.study.objective_shape import objective_data, without_none
from autotune.study.variant_shape import variants_data, variants_of, with_checkpoint

# --- form -> record -------------------------------------------------------------------------------------------------


def study_of(form: StudyForm, *, space: SpaceSpec, objective: ObjectiveSpec, incumbent: Args | None) -> StudySpec:
    """Return the record of a study whose references are resolved."""
    variants = variants_of(form.variants)
    return StudySpec(
        name=form.name,
        model=form.model,
        engine=_engine(form.engine),
        search_space=with_checkpoint(space, variants),
        objective=objective,
        hardware=form.hardware,
        incumbent=incumbent,
        budget=replace(form.budget, trials=1) if form.engine.kind is EngineKind.ENDPOINT else form.budget,
        sampler=SamplerSpec(kind=form.sampler) if isinstance(form.sampler, str) else form.sampler,
        seed=form.seed,
        storage=form.storage,
        quality=form.quality,
        price=form.price,
        finals=form.finals
        if isinstance(form.finals, FinalsSpec) and form.engine.kind is not EngineKind.ENDPOINT
        else None,
        variants=variants,
        variants_dir=form.variants_dir,
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
        container=form.container,
        url=form.url,
        api_key_env=form.api_key_env,
    )


def space_of(form: SpaceForm | None, name: str) -> SpaceSpec:
    """Return the record of a search space; `name` is what it is called when the file doesn't say.

    None is an endpoint's, of which nothing is tuned.
    """
    if form is None:
        return SpaceSpec(name="none", engine=EngineKind.ENDPOINT, parameters=())
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


# --- record -> form, as plain data ----------------------------------------------------------------------------------


def study_data(spec: StudySpec) -> dict[str, Any]:
    """Return the file form of a study, everything inline and defaults left out where they are None."""
    tuned, single = spec.engine.kind is not EngineKind.ENDPOINT, not spec.engines
    engine = _engine_data(spec.engine) if tuned else _endpoint_data(spec.engine)
    return without_none(
        name=spec.name,
        model=spec.model,
        engine=engine if single else None,
        engines={str(entry.engine.name): _entry_data(entry) for entry in spec.engines} or None,
        hardware=_hardware_data(spec.hardware),
        incumbent=dict(spec.incumbent) if single and spec.incumbent is not None else None,
        search_space=space_data(spec.search_space) if tuned and single else None,
        objective=objective_data(spec.objective),
        budget=without_none(trials=spec.budget.trials, hours=spec.budget.hours),
        sampler=_sampler_data(spec.sampler) if tuned else None,
        seed=spec.seed,
        storage=spec.storage,
        quality=spec.quality,
        price=None if spec.price is None else _price_data(spec.price),
        finals=_finals_data(spec.finals) if tuned else None,
        variants=variants_data(spec.variants),
        variants_dir=spec.variants_dir,
    )


def _finals_data(finals: FinalsSpec | None) -> dict[str, Any] | bool:
    return False if finals is None else without_none(**asdict(finals))


def _sampler_data(sampler: SamplerSpec) -> dict[str, Any]:
    kwargs = dict(sampler.kwargs) or None
    return without_none(kind=sampler.kind, kwargs=kwargs, stop_when_settled=sampler.stop_when_settled)


def _price_data(spec: PriceSpec) -> dict[str, Any]:
    return without_none(
        usd_per_gpu_hour=spec.usd_per_gpu_hour,
        usd_per_hour=spec.usd_per_hour,
        usd_per_million_input_tok=spec.usd_per_million_input_tok,
        usd_per_million_output_tok=spec.usd_per_million_output_tok,
        rate_rps=spec.rate_rps,
        headroom_ratio=spec.headroom_ratio,
        starts_per_month=spec.starts_per_month,
        overheads=asdict(spec.overheads),
        api=None if spec.api is None else asdict(spec.api),
    )


def _endpoint_data(spec: EngineSpec) -> dict[str, Any]:
    return without_none(kind=spec.kind.value, url=spec.url, api_key_env=spec.api_key_env)


def _entry_data(entry: EngineEntry) -> dict[str, Any]:
    incumbent = None if entry.incumbent is None else dict(entry.incumbent)
    return _engine_data(entry.engine) | without_none(space=space_data(entry.search_space), incumbent=incumbent)


def _engine_data(spec: EngineSpec) -> dict[str, Any]:
    simulate = spec.simulate
    return without_none(
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
        container=spec.container and _container_data(spec.container),
    )


def _container_data(spec: ContainerSpec) -> dict[str, Any]:
    return {
        "runtime": spec.runtime,
        "image": spec.image,
        "mounts": list(spec.mounts),
        "options": list(spec.options),
    }


def _hardware_data(spec: HardwareSpec) -> dict[str, Any]:
    gpus = None if spec.gpus is None else list(spec.gpus)
    return without_none(gpus=gpus, when_busy=spec.when_busy)


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
    return _domain_data(spec.domain) | without_none(
        when=spec.when, why=spec.why or None, changes_output=spec.changes_output or None
    )


def _domain_data(domain: Domain) -> dict[str, Any]:
    if isinstance(domain, Choice):
        return {"choice": list(domain.values)}
    key = "int" if isinstance(domain, IntRange) else "float"
    step = None if domain.step == 1 and key == "int" else domain.step
    return without_none(**{key: [domain.low, domain.high], "log": domain.log or None, "step": step})
