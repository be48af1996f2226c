"""`best.json`: what is deployed, what it was measured to do, and how far that can be relied on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.errors import InputError
from autotune.records.spec import (
    Args,
    Bound,
    Direction,
    EngineKind,
    HardwareSpec,
    LoadSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.summary import Gain, StudySummary
from autotune.records.trial import Role, Ruling, SloRuling, TrialRecord
from autotune.trial.store import RunDirectory

ReferenceKind = Literal["incumbent", "defaults", "nearest"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BestEngine:
    """`version` is None where the engine didn't tell it; `args` are exactly those measured."""

    kind: EngineKind
    version: str | None
    command: tuple[str, ...]
    args: Args


@dataclass(frozen=True, slots=True, kw_only=True)
class BestObjective:
    metric: str
    direction: Direction
    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestSlo:
    """`value` is None when the metric could not be measured; `bound` tells a ceiling (max) from a floor (min)."""

    metric: str
    bound: Bound
    limit: float
    value: float | None
    low: float | None
    high: float | None
    n: int
    verdict: Ruling


@dataclass(frozen=True, slots=True, kw_only=True)
class BestReference:
    """`nearest`: neither the incumbent nor the engine's defaults could run, and this is the closest that did."""

    kind: ReferenceKind
    args: Args
    objective: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFile:
    """The file's content. Intervals are at the objective's confidence; an open side is null."""

    schema_version: Literal[1] = 1
    study: str
    created_utc: str
    simulated: bool
    confirmed: bool
    quality: Literal["passed", "unchecked", "not_applicable"]
    model: str
    engine: BestEngine
    hardware: HardwareSpec
    workload: WorkloadSpec
    load: LoadSpec
    objective: BestObjective
    slos: tuple[BestSlo, ...]
    reference: BestReference | None
    gain_ratio: Gain | None
    trial: int
    fingerprint: str
    versions: Mapping[str, str | None]
    warnings: tuple[str, ...]


def best_file(
    run: RunDirectory, spec: StudySpec, best: TrialRecord, reference: TrialRecord | None, summary: StudySummary
) -> BestFile:
    """Return the content of `best.json`. A simulated study is never confirmed, whatever its summary says.

    Raises InputError for a trial without a figure of the objective.
    """
    objective = best.objective
    if objective is None:
        raise InputError(f"trial {best.number} has no {spec.objective.metric}", "only a measured trial can be deployed")
    simulated = spec.simulated or best.simulated or summary.simulated
    return BestFile(
        study=spec.name,
        created_utc=summary.updated_utc,
        simulated=simulated,
        confirmed=summary.confirmed and not simulated,
        quality=summary.quality,  # type: ignore[arg-type]
        model=best.model,
        engine=BestEngine(
            kind=spec.engine.kind,
            version=best.versions.get(spec.engine.kind.value),
            command=spec.engine.command,
            args=best.args,
        ),
        hardware=spec.hardware,
        workload=spec.objective.workload,
        load=spec.objective.load,
        objective=BestObjective(
            metric=spec.objective.metric,
            direction=spec.objective.direction,
            value=objective.value,
            low=objective.low,
            high=objective.high,
        ),
        slos=tuple(_slo(ruling) for ruling in (best.verdict.slos if best.verdict else ())),
        reference=_reference(run, spec, reference),
        gain_ratio=summary.gain,
        trial=best.number,
        fingerprint=best.fingerprint,
        versions=best.versions,
        warnings=tuple(dict.fromkeys([*summary.warnings, *best.warnings])),
    )


def best_schema() -> dict[str, Any]:
    """Return the JSON Schema of `best.json`."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - heavy

    return TypeAdapter(BestFile).json_schema(mode="serialization")


def _slo(ruling: SloRuling) -> BestSlo:
    estimate = ruling.estimate
    return BestSlo(
        metric=ruling.metric,
        bound=ruling.bound,
        limit=ruling.limit,
        value=estimate.value if estimate else None,
        low=estimate.low if estimate else None,
        high=estimate.high if estimate else None,
        n=estimate.n if estimate else 0,
        verdict=ruling.ruling,
    )


def _reference(run: RunDirectory, spec: StudySpec, reference: TrialRecord | None) -> BestReference | None:
    if reference is None:
        return None
    value = reference.objective.value if reference.objective else None
    return BestReference(kind=_reference_kind(run, spec, reference), args=reference.args, objective=value)


def _reference_kind(run: RunDirectory, spec: StudySpec, reference: TrialRecord) -> ReferenceKind:
    """The first reference tried is what was asked for; another one stood in for it."""
    first = next((trial for trial in run.trials() if trial.role is Role.REFERENCE), reference)
    if first.fingerprint != reference.fingerprint:
        return "nearest"
    return "defaults" if spec.incumbent is None else "incumbent"
