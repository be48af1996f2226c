"""Objectives, and measurements with the few numbers that a ruling rests on."""

from __future__ import annotations

from typing import Any

from autotune.records.spec import Bound, Direction, FixedLength, LoadSpec, ObjectiveSpec, Slo, WorkloadSpec
from autotune.records.trial import ClientHealth, Estimate, LevelRecord, Measurement, Violations

Levels = list[tuple[LevelRecord, Measurement]]


def objective(*slos: Slo, confidence: float = 0.95) -> ObjectiveSpec:
    return ObjectiveSpec(
        name="test",
        metric="output_tok_per_s",
        direction=Direction.MAXIMIZE,
        slos=slos,
        workload=WorkloadSpec(input_tokens=FixedLength(tokens=8), output_tokens=FixedLength(tokens=3)),
        load=LoadSpec(concurrency=8),
        confidence=confidence,
    )


def at_most(metric: str, limit: float) -> Slo:
    return Slo(metric=metric, limit=limit)


def at_least(metric: str, limit: float) -> Slo:
    return Slo(metric=metric, limit=limit, bound=Bound.MIN)


def figure(value: float, low: float | None = None, high: float | None = None, n: int = 100) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=n)


def seen(
    *violations: Violations,
    stopped: str | None = None,
    open_loop: bool = False,
    untrusted: tuple[str, ...] = (),
    requests: int = 0,
    errors: int = 0,
    **values: Estimate,
) -> tuple[LevelRecord, Measurement]:
    """A level with 8 clients or, in an open loop, 10 requests a second; `ttft_ms_p90` names `ttft_ms.p90`."""
    load: dict[str, Any] = {"offered_rps": 10.0 if open_loop else None, "concurrency": None if open_loop else 8}
    record = LevelRecord(
        plan_seed=1,
        window_s=(5.0, 65.0),
        requests=(),
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=None),
        stopped=stopped,
        **load,
    )
    named = {name.replace("_ms_", "_ms."): estimate for name, estimate in values.items()}
    measurement = Measurement(
        duration_s=60.0,
        requests=requests,
        errors=errors,
        values=named,
        violations=violations,
        untrusted=untrusted,
        **load,
    )
    return record, measurement


def counted(slo: Slo, violated: int, judged: int, inflation: float = 1.0, censored: int = 0) -> Violations:
    return Violations(
        metric=slo.metric,
        limit=slo.limit,
        judged=judged,
        violated=violated,
        censored=censored,
        inflation=inflation,
    )
