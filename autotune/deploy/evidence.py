"""`best.json`: what is deployed, what it was measured to do, and how far that can be relied on."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from autotune.cost.limits import MARGIN_SDS
from autotune.errors import InputError
from autotune.records.metrics import PRICED
from autotune.records.spec import (
    Args,
    Bound,
    Direction,
    EngineKind,
    HardwareSpec,
    LoadSpec,
    PriceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.summary import EngineResult, FinalsSummary, Gain, StudySummary
from autotune.records.trial import Estimate, Role, Ruling, SloRuling, TrialRecord
from autotune.records.variants import Checkpoint
from autotune.trial.figures import figure_of, operating_limits_of
from autotune.trial.launches import figure_over, launches_of
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
class BestCost:
    """At the study's price; None of a figure that was not measured."""

    price: PriceSpec
    usd_per_million_output_tok: Estimate | None
    usd_per_useful_response: Estimate | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestedLimits:
    """How much a replica should take on, by a model of queueing from its measured capacity.

    Not measured, so not part of what is deployed: `args` are what to add for it to the engine's own.
    """

    capacity_rps: float
    in_flight_max: int
    queue_max: int
    args: Args


@dataclass(frozen=True, slots=True, kw_only=True)
class BestFile:
    """The file's content. Intervals are at the objective's confidence; an open side is null.

    `model` is what the engine loads; where a study chose another checkpoint, `checkpoint` names it, and its command
    makes it again.
    """

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
    cost: BestCost | None = None
    suggested_limits: SuggestedLimits | None = None
    finals: FinalsSummary | None = None
    checkpoint: Checkpoint | None = None
    engines: tuple[EngineResult, ...] = ()


def best_file(
    run: RunDirectory, spec: StudySpec, best: TrialRecord, reference: TrialRecord | None, summary: StudySummary
) -> BestFile:
    """Return the content of `best.json`. A simulated study is never confirmed, whatever its summary says.

    Raises InputError for a trial without a figure of the objective.
    """
    objective = summary.decided_by(best)
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
        reference=_reference(run, spec, reference, summary),
        gain_ratio=summary.gain,
        trial=best.number,
        fingerprint=best.fingerprint,
        versions=best.versions,
        warnings=tuple(dict.fromkeys([*summary.warnings, *best.warnings])),
        cost=_cost(run, spec, best),
        suggested_limits=_limits(spec, best),
        finals=summary.finals,
        checkpoint=best.checkpoint,
        engines=summary.engines,
    )


def best_schema() -> dict[str, Any]:
    """Return the JSON Schema of `best.json`."""
    from pydantic import TypeAdapter  # noqa: PLC0415 - heavy

    return TypeAdapter(BestFile).json_schema(mode="serialization")


def _cost(run: RunDirectory, spec: StudySpec, best: TrialRecord) -> BestCost | None:
    if spec.price is None:
        return None
    launches = launches_of(run.trials(), best) or [best]
    by_token, by_answer = (
        figure_over(launches, name, price=spec.price, confidence=spec.objective.confidence) for name in PRICED
    )
    return BestCost(price=spec.price, usd_per_million_output_tok=by_token, usd_per_useful_response=by_answer)


def _limits(spec: StudySpec, best: TrialRecord) -> SuggestedLimits | None:
    limits = operating_limits_of(best, spec.objective)
    if limits is None:
        return None
    vllm = spec.search_space.engine is EngineKind.VLLM
    tokens = _prefilling_tokens(spec, best, limits.capacity_rps) if vllm else None
    return SuggestedLimits(
        capacity_rps=limits.capacity_rps,
        in_flight_max=limits.in_flight_max,
        queue_max=limits.queue_max,
        args={
            **({"max_num_queued_reqs": limits.admitted_max} if vllm else {}),  # it counts running ones too
            **({"max_num_queued_tokens": tokens} if tokens is not None else {}),
        },
    )


def _prefilling_tokens(spec: StudySpec, best: TrialRecord, capacity_rps: float) -> int | None:
    """Prompt tokens in prefill when TTFT is at its limit: by Little's law capacity x limit requests, with the same
    margin as those in flight have (`cost.limits`), times the mean prompt.

    None without a limit on TTFT, or where the mean prompt was not measured.
    """
    limits_s = [slo.limit / 1e3 for slo in spec.objective.slos if slo.metric.startswith("ttft_ms.")]
    found = [figure_of(best, name) for name in ("total_tok_per_s", "output_tok_per_s", "request_rps")]
    if not limits_s or any(figure is None for figure in found):
        return None
    total, output, requests = (figure.value for figure in found if figure is not None)
    if requests <= 0 or total <= output:
        return None
    waiting = capacity_rps * min(limits_s)
    return math.ceil(math.ceil(waiting + MARGIN_SDS * math.sqrt(waiting)) * (total - output) / requests)


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


def _reference(
    run: RunDirectory, spec: StudySpec, reference: TrialRecord | None, summary: StudySummary
) -> BestReference | None:
    if reference is None:
        return None
    figure = summary.decided_by(reference)
    kind = _reference_kind(run, spec, reference)
    return BestReference(kind=kind, args=reference.args, objective=None if figure is None else figure.value)


def _reference_kind(run: RunDirectory, spec: StudySpec, reference: TrialRecord) -> ReferenceKind:
    """The first reference tried is what was asked for; another one stood in for it."""
    tried = (t for t in run.trials() if t.role is Role.REFERENCE and t.engine == reference.engine)
    if next(tried, reference).fingerprint != reference.fingerprint:
        return "nearest"
    its_study = spec if reference.engine == spec.engine.name else run.spec().of_engine(reference.engine)
    return "defaults" if its_study.incumbent is None else "incumbent"
