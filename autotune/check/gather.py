"""A study in, a `Report` out: its space, what of it is excluded and why, the reference, cost, and SLOs that can settle.

No engine is launched. Its own configuration is asked, which takes the seconds of an import.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autotune import space
from autotune.check.cost import Cost, cost_of
from autotune.engines.base import Engine, Preflight, Refusal, Resolved
from autotune.engines.hardware import host_versions
from autotune.engines.variants import VariantState, variant_states
from autotune.errors import ExitCode
from autotune.load import first_plan
from autotune.pipeline import gpus_of
from autotune.records.spec import Args, Choice, Domain, StudySpec
from autotune.records.trial import Failure, Fault
from autotune.search.doubts import machine_doubts
from autotune.search.gate import Exclusion, Gate, Source, make_gate
from autotune.slo import requests_needed_to_pass, samples_expected, unsettled
from autotune.space import RuledOut, Space

SAMPLED = 200
SHOWN_REASONS = 3
_NUMBER = re.compile(r"\d+(?:\.\d+)?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """A parameter that is searched: its values in words, and how many there are (None: a continuum)."""

    name: str
    values: str
    count: int | None
    when: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Excluded:
    """Sampled candidates that one source excludes, and its reasons: (an example, how many are like it)."""

    source: str
    count: int
    reasons: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reference:
    """What the gain would be measured against. `refused_by` None: nothing speaks against launching it.

    `resolved`: what the engine's own configuration makes of it; empty where that can't be asked.
    """

    args: Args
    refused_by: str | None = None
    failure: Failure | None = None
    resolved: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class SloNeeds:
    """Samples that an SLO takes to pass without a violation (None: no count decides), and those that a launch gives
    (None: the engine's speed decides)."""

    metric: str
    limit: float
    needed: float | None
    expected: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What `autotune check` found; `sampled` random candidates, of which `launchable` pass everything."""

    schema_version: int = 1
    study: str
    simulated: bool
    model: str
    engine: str
    hardware: Mapping[str, str | None]
    gpus: tuple[str, ...]
    dimensions: tuple[Dimension, ...]
    combinations: float | None
    notes: tuple[str, ...]
    sampled: int
    launchable: int
    excluded: tuple[Excluded, ...]
    reference: Reference
    cost: Cost
    slos: tuple[SloNeeds, ...]
    warnings: tuple[str, ...]
    variants: tuple[VariantState, ...] = ()

    @property
    def exit_code(self) -> ExitCode:
        """4 when the user's set-up keeps the engine from running, 2 when no candidate is left, else 0."""
        failure = self.reference.failure
        if failure is not None and failure.fault is not Fault.CANDIDATE:
            return ExitCode.ENVIRONMENT
        return ExitCode.OK if self.launchable or not self.sampled else ExitCode.BAD_INPUT


def check_study(spec: StudySpec, engine: Engine, *, sampled: int = SAMPLED) -> Report:
    """Return what running `spec` would mean. Raises InputError when its space holds no candidate."""
    gpus = gpus_of(spec)
    candidates = space.build_space(spec, gpus=max(1, len(gpus)))
    warnings = [*unsettled(spec.objective), *first_plan(spec).notes, *machine_doubts(spec)]
    with engine.preflight(gpus=gpus, tell=warnings.append) as preflight:
        gate = make_gate(spec, engine, gpus, preflight, warnings.append)
        reference = _reference(candidates.reference(spec.incumbent).args, gate, preflight)
        if reference.failure is not None and reference.failure.fault is Fault.SETUP:
            gate.preflight = None  # it would say the same of every candidate
        launchable, excluded = _sample(candidates, gate, random.Random(spec.seed), sampled)  # noqa: S311
    versions = {**host_versions(), **engine.versions()}
    return Report(
        study=spec.name,
        simulated=spec.simulated,
        model=spec.model,
        engine=spec.engine.kind.value,
        hardware=versions,
        gpus=gpus,
        dimensions=_dimensions(candidates),
        combinations=_combinations(candidates),
        notes=candidates.notes,
        sampled=sampled,
        launchable=launchable,
        excluded=excluded,
        reference=reference,
        cost=cost_of(spec, reference.args, engine),
        slos=tuple(_needs(spec)),
        warnings=tuple(dict.fromkeys(warnings)),
        variants=variant_states(spec),
    )


# --- the space --------------------------------------------------------------------------------------------------------


def _dimensions(candidates: Space) -> tuple[Dimension, ...]:
    return tuple(
        Dimension(
            name=parameter.name,
            values=_values(parameter.domain),
            count=_size(parameter.domain),
            when=parameter.when.text if parameter.when else None,
        )
        for parameter in candidates.dimensions
    )


def _values(domain: Domain) -> str:
    if isinstance(domain, Choice):
        return ", ".join(str(value) for value in domain.values)
    step = f" in steps of {domain.step:g}" if domain.step not in (None, 1) else ""
    return f"{domain.low:g} to {domain.high:g}{step}{', logarithmic' if domain.log else ''}"


def _size(domain: Domain) -> int | None:
    if isinstance(domain, Choice):
        return len(domain.values)
    return None if domain.step is None else round((domain.high - domain.low) / domain.step) + 1


def _combinations(candidates: Space) -> float | None:
    """Upper bound: conditions and rules take some away. None for a continuum."""
    product = 1.0
    for parameter in candidates.dimensions:
        size = _size(parameter.domain)
        if size is None:
            return None
        product *= size
    return product


# --- what is excluded -------------------------------------------------------------------------------------------------


def _reference(args: Args, gate: Gate, preflight: Preflight | None) -> Reference:
    answer = preflight.ask(args) if preflight is not None else None
    resolved = answer.settings if isinstance(answer, Resolved) else {}
    exclusion = gate.exclude(args)
    if isinstance(answer, Refusal) and answer.failure.fault is Fault.SETUP:  # before all that rules could say
        exclusion = Exclusion(source=Source.PREFLIGHT, failure=answer.failure)
    if exclusion is None:
        return Reference(args=args, resolved=resolved)
    return Reference(args=args, refused_by=exclusion.source.value, failure=exclusion.failure, resolved=resolved)


def _sample(candidates: Space, gate: Gate, rng: random.Random, sampled: int) -> tuple[int, tuple[Excluded, ...]]:
    """How many of `sampled` random candidates could be launched, and who excludes the others."""
    reasons: dict[str, Counter[str]] = {}
    examples: dict[str, str] = {}
    for _ in range(sampled):
        source, kind, example = _verdict(candidates.sample(rng), gate.exclude)
        if source is not None:
            reasons.setdefault(source.value, Counter())[kind] += 1
            examples.setdefault(kind, example)
    excluded = tuple(
        Excluded(
            source=source,
            count=counts.total(),
            reasons=tuple((examples[kind], count) for kind, count in counts.most_common(SHOWN_REASONS)),
        )
        for source, counts in reasons.items()
    )
    return sampled - sum(each.count for each in excluded), excluded


def _verdict(drawn: Any, exclude: Callable[[Args], Exclusion | None]) -> tuple[Source | None, str, str]:  # noqa: ANN401
    """Who excludes what was drawn, the kind of reason (its words without their numbers), and an example."""
    if isinstance(drawn, RuledOut):
        return Source.SPACE, drawn.rule, drawn.reason
    exclusion = None if drawn.checkpoint is not None else exclude(drawn.args)  # only of the model is enough known
    if exclusion is None:
        return None, "", ""
    return exclusion.source, _NUMBER.sub("N", exclusion.failure.cause), exclusion.failure.cause


# --- SLOs -------------------------------------------------------------------------------------------------------------


def _needs(spec: StudySpec) -> list[SloNeeds]:
    objective = spec.objective
    found = []
    for slo in objective.slos:
        needed = requests_needed_to_pass(slo, objective.confidence, objective.load)
        expected = samples_expected(slo, objective) if needed else None
        found.append(SloNeeds(metric=slo.metric, limit=slo.limit, needed=needed or None, expected=expected))
    return found
