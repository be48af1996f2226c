"""What a trial says whose load is a capacity: the objective's figure, the verdict, and the wait between levels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.base import engine_for
from autotune.records.spec import CapacitySpec, LoadSpec, ObjectiveSpec, Slo, UniformLength, WorkloadSpec
from autotune.records.trial import (
    Candidate,
    Capacity,
    Cleanup,
    Endpoint,
    Estimate,
    Failure,
    LevelRecord,
    Outcome,
    Phase,
    Role,
    Ruling,
    SloRuling,
    TrialRecord,
    fingerprint,
)
from autotune.report.verdict import capacity_lines
from autotune.trial.at_capacity import verdict_at
from autotune.trial.draining import Drain
from autotune.trial.judging import judged, measured
from autotune.trial.loading import Loaded, load_server
from tests.builders import objective, study_spec, trial
from tests.trial import replaying

SLOS = (Slo(metric="ttft_ms.p99", limit=400.0), Slo(metric="tpot_ms.p99", limit=25.0))
WORKLOAD = WorkloadSpec(input_tokens=UniformLength(low=400, high=1600), output_tokens=UniformLength(low=20, high=100))
GPUS = 2


def goal(metric: str) -> ObjectiveSpec:
    load = LoadSpec(capacity=CapacitySpec(low=2, load_s=120), duration_s=15, warmup_s=2)
    return objective(slos=SLOS, workload=WORKLOAD, load=load, metric=metric)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    spec = study_spec(objective=goal("capacity_rps"))
    args = {"max_model_len": 2048, "max_num_seqs": 64}
    candidate = Candidate(params=args, args=args, role=Role.SEARCH, fingerprint=fingerprint("s", spec.model, args))
    folder: Path = tmp_path_factory.mktemp("trial")
    with engine_for(spec).launch(candidate, trial_dir=folder, gpus=("0",), on_phase=lambda _: None) as server:
        return load_server(spec, server, lambda _: None)


def judge(loaded: Loaded, metric: str, capacity: Capacity | None = None) -> TrialRecord:
    record = replace(trial(1, args={}), capacity=capacity or loaded.capacity)
    return judged(record, goal(metric), loaded.levels, GPUS)


def test_a_simulated_engine_is_searched_by_its_twin_and_holds(loaded: Loaded) -> None:
    assert loaded.capacity is not None
    assert loaded.capacity.method == "twin"
    record = judge(loaded, "capacity_rps")
    assert record.outcome is Outcome.OK
    assert record.objective is not None
    assert record.objective.value == loaded.capacity.value.value
    assert record.verdict is not None
    assert {slo.ruling for slo in record.verdict.slos} == {Ruling.PASS}
    assert len(record.measurements) == len(loaded.levels)


def test_per_gpu_it_is_divided(loaded: Loaded) -> None:
    whole, each = (judge(loaded, name).objective for name in ("capacity_rps", "capacity_rps_per_gpu"))
    assert whole is not None
    assert each is not None
    assert each.value == pytest.approx(whole.value / GPUS)


def test_another_objective_is_taken_from_the_levels_beside_the_capacity(loaded: Loaded) -> None:
    assert loaded.capacity is not None
    found = judge(loaded, "request_rps").objective
    assert found is not None
    assert found.value == pytest.approx(loaded.capacity.value.value, rel=0.15)


def capacity_of(value: float) -> Capacity:
    estimate = Estimate(value=value, low=0.9 * value, high=1.1 * value, n=1)
    return Capacity(of="rps", value=estimate, method="twin", levels=1, load_s=1.0)


def ruled(levels: Sequence[tuple[float, LevelRecord]], slo: Slo, value: float) -> SloRuling:
    """The ruling on one SLO by levels at these loads, for a capacity of `value`."""
    asked = replace(goal("capacity_rps"), slos=(slo,))
    loaded = [replace(level, offered_rps=load) for load, level in levels]
    measured_levels = [(level, measured(level, asked, 1, None)) for level in loaded]
    return verdict_at(asked, measured_levels, capacity_of(value)).slos[0]


def test_errors_of_levels_above_the_capacity_are_none_at_it() -> None:
    whole, _ = replaying.level(1)
    failing = replace(whole, requests=tuple(replace(r, error="HTTP 500", chunk_s=()) for r in whole.requests))
    clean = replace(whole, requests=tuple(r for r in whole.requests if r.error is None))
    slo = Slo(metric="error_ratio", limit=0.2)
    assert ruled([(10.0, clean), (20.0, failing)], slo, 12.0).ruling is Ruling.PASS
    assert ruled([(10.0, failing), (20.0, clean)], slo, 12.0).ruling is Ruling.FAIL


def test_a_level_below_the_capacity_that_fails_is_a_miss_and_one_that_settles_nothing_is_told_so() -> None:
    level, _ = replaying.level(1)
    overloaded = replace(level, stopped="overload: ttft_ms.p99: queue")
    slo = Slo(metric="ttft_ms.p99", limit=400.0)
    assert ruled([(10.0, overloaded)], slo, 12.0).ruling is Ruling.FAIL
    unsettled = replace(level, requests=tuple(r for r in level.requests if r.error is None))
    held = ruled([(10.0, unsettled), (20.0, overloaded)], slo, 12.0)
    assert held.ruling is Ruling.PASS
    assert held.why.startswith("holds up to 12 req/s by twin; one level settles nothing (at 10 req/s: ")
    assert held.excess is None or held.excess <= 0


def test_without_a_level_at_or_below_the_capacity_nothing_is_ruled() -> None:
    level, _ = replaying.level(1)
    ruling = ruled([(20.0, level)], Slo(metric="ttft_ms.p99", limit=400.0), 12.0)
    assert ruling.ruling is Ruling.UNSURE
    assert ruling.why == "no level was run at or below 12 req/s"


def test_without_a_capacity_the_trial_is_judged_by_its_lowest_load(loaded: Loaded) -> None:
    assert loaded.capacity is not None
    nothing = replace(loaded.capacity, value=Estimate(value=0.0, low=0.0, high=2.0, n=1))
    record = judge(loaded, "capacity_rps", nothing)
    assert record.verdict is not None
    assert record.verdict.ruling is not Ruling.PASS


@dataclass(slots=True)
class Busy:
    """A server in real time that has requests for as many looks as `left` says."""

    left: int = 3
    code: int | None = None
    seen: list[int] = field(default_factory=list)
    endpoint: Endpoint = field(default_factory=lambda: Endpoint(host="127.0.0.1", port=1, model_name="m"))
    startup_s: float = 1.0
    argv: tuple[str, ...] = ()
    vocab_size: int | None = None
    max_model_len: int | None = None
    cleanup: Cleanup | None = None

    def resolved(self) -> Mapping[str, Any]:
        return {}

    def warnings(self) -> tuple[str, ...]:
        return ()

    def log_tail(self, lines: int) -> tuple[str, ...]:
        return ()

    def failure(self, phase: Phase) -> Failure | None:
        return None

    def metrics(self) -> Mapping[str, float]:
        self.seen.append(self.left)
        self.left = max(0, self.left - 1)
        return {"vllm:num_requests_running": float(self.seen[-1]), "vllm:num_requests_waiting": 0.0}

    def exit_code(self) -> int | None:
        return self.code


def test_the_next_level_waits_until_the_gauges_show_nothing() -> None:
    server = Busy()
    assert Drain(server)()
    assert server.seen[-1] == 0


def test_nobody_waits_for_a_server_that_died() -> None:
    assert not Drain(Busy(left=10**9, code=-9))()


def test_show_tells_capacity_interval_method_and_doubts_in_one_line(loaded: Loaded) -> None:
    assert loaded.capacity is not None
    told = replace(loaded.capacity, method="levels", doubts=("twin of one factor: its p99 is off by 20%",))
    (line,) = capacity_lines(judge(loaded, "capacity_rps", told))
    assert line.startswith(f"Capacity {told.value.value:.4g} req/s [{told.value.low:.4g}, {told.value.high:.4g}]")
    assert "by levels" in line
    assert line.endswith("twin of one factor: its p99 is off by 20%")
