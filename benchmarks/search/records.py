"""A measured launch as the study's own `TrialRecord`, so that strategies are told what a real study would tell them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autotune.engines.vllm.diagnosis import diagnose
from autotune.models.config import from_vllm_args
from autotune.models.startup import IMPORT_S, StartupTime, compile_key, startup_time
from autotune.records.spec import Bound, ObjectiveSpec, StudySpec
from autotune.records.trial import (
    Candidate,
    Capacity,
    Estimate,
    Failure,
    Fault,
    Measurement,
    Outcome,
    Phase,
    Ruling,
    SloRuling,
    TrialRecord,
    Verdict,
)
from autotune.search.gate import Exclusion
from benchmarks.search.evaluation import Died, Measured, machine_of
from benchmarks.search.landscapes import Landscape
from benchmarks.search.truth import world

BREAKS_AFTER_S = 20.0  # of load, where a launch crashes under it
STARTED_UTC = "2026-01-01T00:00:00+00:00"
PHASES = {Died.CONFIG: Phase.LAUNCH, Died.WEIGHTS: Phase.LAUNCH, Died.START: Phase.LAUNCH, Died.LOAD: Phase.LOAD}
NOISE = 0.06  # half width of an estimate's interval, relative: twice the noise of a launch
VERSIONS = {"simulated_engine": "vLLM 0.32, benchmarks.search"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """Seconds of the engine: until it was ready or broke, and under load."""

    startup_s: float
    load_s: float

    @property
    def total_s(self) -> float:
        """Both."""
        return self.startup_s + self.load_s


def spent(landscape: Landscape, candidate: Candidate, found: Measured, compiled: set[object]) -> Spent:
    """Return what a launch took; `compiled`, the study's compile caches so far, gains its own."""
    if found.died == Died.CONFIG:
        return Spent(startup_s=IMPORT_S, load_s=0.0)
    config = from_vllm_args(candidate.args, *machine_of(landscape.spec))
    key = compile_key(config)
    took = startup_time(
        config, world(landscape).memory(config), compile_cold=key not in compiled, pages_cold=not compiled
    )
    if found.died == Died.WEIGHTS:
        return Spent(startup_s=took.import_s + took.weights_s, load_s=0.0)
    compiled.add(key)
    return Spent(startup_s=_until(took, found), load_s=_load_s(landscape.spec.objective, found))


def _until(took: StartupTime, found: Measured) -> float:
    return took.total_s - took.graphs_s if found.died == Died.START else took.total_s


def _load_s(objective: ObjectiveSpec, found: Measured) -> float:
    if found.died is not None:
        return BREAKS_AFTER_S if found.died == Died.LOAD else 0.0
    asked = objective.load
    return asked.capacity.load_s if asked.capacity is not None else asked.warmup_s + asked.duration_s


def record_of(landscape: Landscape, candidate: Candidate, number: int, found: Measured, took: Spent) -> TrialRecord:
    """Return the record of trial `number`."""
    spec = landscape.spec
    measured = found.died is None
    return TrialRecord(
        study=spec.name,
        number=number,
        role=candidate.role,
        simulated=True,
        params=candidate.params,
        args=candidate.args,
        fingerprint=candidate.fingerprint,
        model=spec.model,
        outcome=found.outcome,
        failure=_failure(found),
        objective=None if found.value is None else _estimate(found.value, found.requests),
        verdict=_verdict(spec.objective, found) if measured else None,
        measurements=(_measurement(spec.objective, found),) if measured else (),
        capacity=_capacity(spec.objective, found, took) if measured else None,
        startup_s=took.startup_s,
        load_s=took.load_s,
        wall_s=took.total_s,
        gpus=len(landscape.gpus),
        started_utc=STARTED_UTC,
        seed=spec.seed,
        resolved=_resolved(found),
        versions=VERSIONS,
    )


def ruled_out(spec: StudySpec, candidate: Candidate, exclusion: Exclusion, number: int = 0) -> TrialRecord:
    """Return the record of a candidate that was not launched."""
    return TrialRecord(
        study=spec.name,
        number=number,
        role=candidate.role,
        simulated=True,
        params=candidate.params,
        args=candidate.args,
        fingerprint=candidate.fingerprint,
        model=spec.model,
        outcome=Outcome.RULED_OUT,
        failure=replace(exclusion.failure, outcome=Outcome.RULED_OUT),
        ruled_out_by=exclusion.source.value,
        started_utc=STARTED_UTC,
        seed=spec.seed,
    )


def _failure(found: Measured) -> Failure | None:
    """By the product's own rules for logs, edges and all."""
    if found.died is None:
        return None
    phase = PHASES[found.died]
    told = diagnose(1, phase, found.line)
    return Failure(
        outcome=found.outcome,
        fault=Fault.CANDIDATE,
        phase=phase,
        cause=found.line,
        remedy=told.remedy,
        edges=told.edges,
    )


def _estimate(value: float, count: int) -> Estimate:
    return Estimate(value=value, low=value * (1 - NOISE), high=value * (1 + NOISE), n=count)


def _verdict(objective: ObjectiveSpec, found: Measured) -> Verdict:
    rulings = tuple(
        SloRuling(
            metric=slo.metric,
            bound=Bound.MAX,
            limit=slo.limit,
            estimate=_estimate(found.values[slo.metric], found.requests),
            excess=found.excess[slo.metric],
            ruling=Ruling.FAIL if found.excess[slo.metric] > 0 else Ruling.PASS,
        )
        for slo in objective.slos
    )
    ruling = Ruling.PASS if found.outcome is Outcome.OK else Ruling.FAIL
    return Verdict(slos=rulings, ruling=ruling)


def _measurement(objective: ObjectiveSpec, found: Measured) -> Measurement:
    closed = objective.load.concurrency
    asked = objective.load
    return Measurement(
        offered_rps=None if closed else found.rate,
        concurrency=closed,
        duration_s=asked.duration_s,
        requests=found.requests,
        errors=0,
        values={name: _estimate(value, found.requests) for name, value in found.values.items()},
        counters=found.counters,
    )


def _capacity(objective: ObjectiveSpec, found: Measured, took: Spent) -> Capacity | None:
    if objective.load.capacity is None or found.value is None:
        return None
    return Capacity(
        of="rps", value=_estimate(found.value, found.requests), method="levels", levels=1, load_s=took.load_s
    )


def _resolved(found: Measured) -> Mapping[str, int]:
    if found.died is not None:
        return {}
    return {"kv_cache_tokens": found.kv_tokens, "num_gpu_blocks": found.blocks + 1}
