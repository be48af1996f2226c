"""Records for tests, with everything that a test does not care about filled in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.records.spec import (
    Bound,
    BudgetSpec,
    Choice,
    Direction,
    EngineKind,
    EngineSpec,
    FixedLength,
    IntRange,
    LoadSpec,
    ObjectiveSpec,
    ParameterSpec,
    Slo,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.trial import (
    Estimate,
    Failure,
    Fault,
    Outcome,
    Phase,
    Role,
    Ruling,
    SloRuling,
    TrialRecord,
    Verdict,
    fingerprint,
)

TTFT_LIMIT_MS = 500.0


def objective(**changes: Any) -> ObjectiveSpec:
    """Most output tokens per second with a p90 TTFT of at most 500 ms."""
    fields: dict[str, Any] = {
        "name": "test",
        "metric": "output_tok_per_s",
        "direction": Direction.MAXIMIZE,
        "slos": (Slo(metric="ttft_ms.p90", limit=TTFT_LIMIT_MS),),
        "workload": WorkloadSpec(input_tokens=FixedLength(tokens=128), output_tokens=FixedLength(tokens=32)),
        "load": LoadSpec(concurrency=8, duration_s=10, warmup_s=1),
    }
    return ObjectiveSpec(**(fields | changes))


def space_spec() -> SpaceSpec:
    """Two parameters and a rule between them."""
    return SpaceSpec(
        name="test",
        engine=EngineKind.VLLM,
        parameters=(
            ParameterSpec(name="max_num_seqs", domain=IntRange(low=8, high=256, log=True)),
            ParameterSpec(name="max_num_batched_tokens", domain=Choice(values=(64, 512, 2048))),
        ),
        rules=("max_num_batched_tokens >= max_num_seqs",),
    )


def study_spec(**changes: Any) -> StudySpec:
    """A study on a simulated engine."""
    fields: dict[str, Any] = {
        "name": "test",
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "engine": EngineSpec(kind=EngineKind.SIMULATED),
        "search_space": space_spec(),
        "objective": objective(),
        "budget": BudgetSpec(trials=6),
    }
    return StudySpec(**(fields | changes))


def estimate(value: float, half_width: float = 1.0, n: int = 100) -> Estimate:
    """`value` ± `half_width`."""
    return Estimate(value=value, low=value - half_width, high=value + half_width, n=n)


def verdict(ruling: str, excess: float = -0.5) -> Verdict:
    """A verdict on the objective's one SLO."""
    value = TTFT_LIMIT_MS * (1 + excess)
    slo = SloRuling(
        metric="ttft_ms.p90",
        bound=Bound.MAX,
        limit=TTFT_LIMIT_MS,
        estimate=estimate(value),
        excess=excess,
        ruling=Ruling(ruling),
    )
    return Verdict(slos=(slo,), ruling=Ruling(ruling))


_RULINGS = {Outcome.OK: ("pass", -0.5), Outcome.SLO_MISS: ("fail", 0.5), Outcome.UNSURE: ("unsure", -0.05)}


def trial(
    number: int,
    *,
    outcome: Outcome = Outcome.OK,
    value: float | None = None,
    half_width: float = 1.0,
    role: Role = Role.SEARCH,
    args: Mapping[str, Any] | None = None,
    params: Mapping[str, Any] | None = None,
) -> TrialRecord:
    """A finished trial; one that was not measured has a failure."""
    args = args if args is not None else {"max_num_seqs": 10 + number}
    failure = None
    if not outcome.measured:
        fault = Fault.CANDIDATE if outcome.teaches_infeasible else Fault.ENVIRONMENT
        failure = Failure(outcome=outcome, fault=fault, phase=Phase.LAUNCH, cause="it broke", remedy="mend it")
    return TrialRecord(
        study="test",
        number=number,
        role=role,
        simulated=False,
        params=params if params is not None else args,
        args=args,
        fingerprint=fingerprint("vllm", "m", args),
        model="m",
        outcome=outcome,
        failure=failure,
        objective=estimate(value, half_width) if value is not None else None,
        verdict=verdict(*_RULINGS[outcome]) if outcome in _RULINGS else None,
        started_utc="2026-01-01T00:00:00+00:00",
        seed=1,
    )
