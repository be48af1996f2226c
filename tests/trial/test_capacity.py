"""The search for a capacity on engines in virtual time: the scheduler model itself at another pace, honest or lying."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from autotune.load import build_level
from autotune.models.simulation import SimResult, trace_of
from autotune.models.stationary import Stationary
from autotune.models.twin import Twin
from autotune.records.spec import CapacitySpec, LoadSpec, ObjectiveSpec, Slo, UniformLength, WorkloadSpec
from autotune.records.trial import ClientHealth, LevelPlan, LevelRecord, RequestPlan, RequestRecord
from autotune.trial.capacity import Bench, Found, find_capacity
from tests.builders import objective
from tests.models.setups import config

SLOS = (Slo(metric="ttft_ms.p99", limit=400.0), Slo(metric="tpot_ms.p99", limit=40.0))
WORKLOAD = WorkloadSpec(input_tokens=UniformLength(low=400, high=1600), output_tokens=UniformLength(low=20, high=100))
TWIN = Twin(config=config(max_num_seqs=128, max_model_len=2048), blocks=20_000)
PACE = 1.5
DRAIN_S = 30.0

Lie = Callable[[int, RequestRecord], RequestRecord]


def asked(slos: tuple[Slo, ...] = SLOS, **capacity: object) -> ObjectiveSpec:
    load = LoadSpec(capacity=CapacitySpec(**capacity), duration_s=20, warmup_s=2)  # type: ignore[arg-type]
    return objective(slos=slos, workload=WORKLOAD, load=load, metric="capacity_rps")


@dataclass
class Engine:
    """Runs levels on the model at PACE; `lie` changes the record of each request."""

    lie: Lie = lambda _, record: record
    pace: float = PACE
    plans: list[LevelPlan] = field(default_factory=list)
    settled: int = 0

    def run(self, plan: LevelPlan) -> LevelRecord:
        self.plans.append(plan)
        count = min(len(plan.requests), 3000)  # a closed loop has endless ones
        requests = [plan.requests[i] for i in range(count)]
        end_s = plan.warmup_s + plan.duration_s
        trace = trace_of(
            [r.prompt_tokens or 1 for r in requests],
            [r.output_tokens for r in requests],
            [r.at_s or 0.0 for r in requests],
        )
        result = replace(TWIN, pace=self.pace).run(
            trace, concurrency=plan.concurrency, last_start_s=end_s, end_s=end_s + plan.drain_s
        )
        records = [self.lie(i, record(requests[i], result, i)) for i in range(result.issued)]
        return LevelRecord(
            plan_seed=plan.seed,
            offered_rps=plan.offered_rps,
            concurrency=plan.concurrency,
            window_s=(plan.warmup_s, end_s),
            requests=tuple(records),
            client=ClientHealth(send_lag_p99_ms=0.0, cpu_ratio=0.0),
        )

    def settle(self) -> None:
        self.settled += 1


def record(plan: RequestPlan, result: SimResult, i: int) -> RequestRecord:
    sent_s, first_s, last_s = (float(times[i]) for times in (result.sent_s, result.first_s, result.finish_s))
    whole = bool(np.isfinite(last_s))
    return RequestRecord(
        index=plan.index,
        scheduled_s=plan.at_s,
        sent_s=sent_s,
        chunk_s=(first_s, last_s) if whole else (first_s,) if np.isfinite(first_s) else (),
        done_s=last_s if whole else None,
        status=200,
        prompt_tokens=plan.prompt_tokens,
        output_tokens=plan.output_tokens if whole else None,
        asked_prompt_tokens=plan.prompt_tokens,
        asked_output_tokens=plan.output_tokens,
        error=None if whole else "cut",
    )


def search(engine: Engine, goal: ObjectiveSpec, twin: Twin | None = TWIN, seed: int = 1) -> Found:
    def plan(load: LoadSpec, index: int) -> LevelPlan:
        return build_level(goal.workload, load, seed=seed * 1000 + index)

    return find_capacity(goal, Bench(plan=plan, run=engine.run, settle=engine.settle), twin=twin)


@pytest.fixture(scope="module")
def truth() -> float:
    requests = build_level(WORKLOAD, LoadSpec(concurrency=1, max_requests=2000), seed=77).requests
    population = trace_of([r.prompt_tokens or 1 for r in requests], [r.output_tokens for r in requests])
    return Stationary(twin=TWIN, population=population, slos=SLOS, requests=40_000, guess=30.0).capacity(PACE)


@pytest.fixture(scope="module")
def found() -> tuple[Engine, Found]:
    engine = Engine()
    return engine, search(engine, asked(low=5.0, load_s=200.0))


def test_an_engine_slower_than_its_twin_is_found_out(found: tuple[Engine, Found], truth: float) -> None:
    capacity = found[1].capacity
    assert capacity.method == "twin"
    assert capacity.value.value == pytest.approx(truth, rel=0.05)
    assert capacity.value.low is not None
    assert capacity.value.high is not None
    assert capacity.value.low <= truth <= capacity.value.high


def test_it_takes_few_levels_and_the_whole_curve_is_kept(found: tuple[Engine, Found]) -> None:
    engine, result = found
    assert len(result.levels) == result.capacity.levels == len(engine.plans) - 1 <= 4  # and the lone client
    assert result.capacity.load_s < 110


@pytest.mark.parametrize("pace", [0.03, PACE, 20.0])
def test_a_lone_client_tells_where_to_begin_whatever_the_machine(pace: float) -> None:
    engine = Engine(pace=pace)
    search(engine, asked(load_s=15.0), twin=None)
    assert engine.plans[0].concurrency == 1
    begun = (engine.plans[1].offered_rps or 0.0) * pace
    assert 1.0 < begun < 15.0  # at a pace of 1 the capacity is about 23


def test_levels_of_a_launch_share_no_request_and_the_server_is_left_to_settle_between(
    found: tuple[Engine, Found],
) -> None:
    engine, _ = found
    prompts = [plan.requests[0].prompt_ids for plan in engine.plans]
    assert len(set(prompts)) == len(prompts)
    assert engine.settled == len(engine.plans) - 1


def test_a_slower_candidate_meets_the_same_levels_stretched() -> None:
    fast, slow = Engine(), Engine(pace=2.5)
    for engine in (fast, slow):
        search(engine, asked(load_s=25.0), twin=None)
    one, other = (engine.plans[1] for engine in (fast, slow))
    assert one.seed == other.seed
    assert one.requests[3].prompt_ids == other.requests[3].prompt_ids
    times = [(p.requests[9].at_s or 0.0) * (p.offered_rps or 0.0) for p in (one, other)]
    assert times[0] == pytest.approx(times[1])


def stalled(index: int, seen: RequestRecord) -> RequestRecord:
    """One request in twenty waits for two seconds before its first token, whatever the load."""
    if index % 20 or seen.error:
        return seen
    later = tuple(t + 2.0 for t in seen.chunk_s)
    return replace(seen, chunk_s=later, done_s=later[-1])


def test_the_guard_refuses_a_twin_of_an_engine_that_stalls_at_any_load() -> None:
    result = search(Engine(lie=stalled), asked(low=5.0, high=60.0, load_s=120.0))
    assert result.capacity.method == "levels"
    assert any("twin" in doubt for doubt in result.capacity.doubts)
    assert result.capacity.value.value < 10.0  # it holds nowhere: 5 % of violations of a p99
    assert result.capacity.load_s <= 120.0 + DRAIN_S


def hiccuping(index: int, seen: RequestRecord) -> RequestRecord:
    """One request in fifty waits for a quarter of a second: within the limits, but no queue makes such a tail."""
    if index % 50 or seen.error:
        return seen
    later = tuple(t + 0.25 for t in seen.chunk_s)
    return replace(seen, chunk_s=later, done_s=later[-1])


def test_the_guard_refuses_a_twin_whose_tail_is_another_one() -> None:
    result = search(Engine(lie=hiccuping), asked(low=5.0, high=60.0, load_s=50.0))
    assert result.capacity.method == "levels"
    assert any("p99" in doubt for doubt in result.capacity.doubts)


def failing(index: int, seen: RequestRecord) -> RequestRecord:
    return seen if index % 10 else replace(seen, error="HTTP 500", chunk_s=(), output_tokens=None)


def test_a_twin_is_not_asked_about_an_engine_that_fails_requests() -> None:
    result = search(Engine(lie=failing), asked(low=10.0, high=30.0, load_s=30.0))
    assert result.capacity.method == "levels"
    assert any("failed" in doubt for doubt in result.capacity.doubts)


def test_without_a_twin_levels_bracket_the_capacity_and_own_up_to_a_tenth(truth: float) -> None:
    result = search(Engine(), asked(low=8.0, high=100.0, load_s=250.0), twin=None)
    value = result.capacity.value
    assert result.capacity.method == "levels"
    assert value.value == pytest.approx(truth, rel=0.15)
    assert value.low is not None
    assert value.high is not None
    assert value.low <= truth <= value.high
    assert min(value.high / value.value, value.value / value.low) >= 1.09
    assert "no twin: too little is known of the engine to simulate it" in result.capacity.doubts


def test_a_search_that_ends_at_its_highest_load_says_so() -> None:
    value = search(Engine(), asked(low=1.0, high=10.0, load_s=120.0), twin=None).capacity
    assert value.value.value == 10.0
    assert value.value.high is None
    assert "the SLOs hold at the highest load of the search, 10" in value.doubts


def test_where_not_even_the_lowest_load_holds_the_capacity_is_nothing() -> None:
    impossible = (Slo(metric="ttft_ms.p99", limit=1.0),)
    value = search(Engine(), asked(impossible, low=5.0, high=50.0, load_s=100.0), twin=None).capacity
    assert value.value.value == 0.0
    assert value.value.high == 5.0


def test_slos_that_the_twin_cannot_tell_are_left_to_levels() -> None:
    slos = (*SLOS, Slo(metric="itl_ms.p99", limit=80.0))
    result = search(Engine(), asked(slos, low=5.0, high=60.0, load_s=100.0))
    assert result.capacity.method == "levels"
    assert "no twin: it can't tell itl_ms.p99" in result.capacity.doubts


def test_clients_of_a_closed_loop_are_whole_numbers() -> None:
    slos = (Slo(metric="tpot_ms.p90", limit=25.0),)
    engine = Engine()
    capacity = search(engine, asked(slos, of="concurrency", low=4, high=400, load_s=60.0)).capacity
    assert capacity.of == "concurrency"
    assert capacity.value.value == int(capacity.value.value) > 0
    assert all(plan.concurrency and plan.offered_rps is None for plan in engine.plans)


def test_whatever_a_level_raises_passes_through() -> None:
    class Dead(Exception):
        pass

    def run(plan: LevelPlan) -> LevelRecord:
        raise Dead

    with pytest.raises(Dead):
        find_capacity(asked(low=5.0), Bench(plan=_plan, run=run), twin=TWIN)


def _plan(load: LoadSpec, index: int) -> LevelPlan:
    return build_level(WORKLOAD, load, seed=index)
