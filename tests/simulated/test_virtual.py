"""The virtual face: launches, levels and failures without a process or a clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from autotune.engines.base import LaunchError, VirtualServer, engine_for
from autotune.engines.simulated.virtual import Launch, run_level, seed_of
from autotune.models.config import from_vllm_args
from autotune.models.shapes import gpu_of, shape_of
from autotune.records.spec import EngineKind, EngineSpec, SimulateSpec, StudySpec
from autotune.records.trial import (
    Candidate,
    Fault,
    LevelPlan,
    LevelRecord,
    Outcome,
    Phase,
    RequestPlan,
    Role,
    fingerprint,
)
from tests import builders

MODEL = "meta-llama/Llama-3.1-8B"
ARGS: Mapping[str, Any] = {"max_model_len": 1024}


def study(model: str = MODEL, **simulate: Any) -> StudySpec:
    engine = EngineSpec(kind=EngineKind.SIMULATED, args=ARGS, simulate=SimulateSpec(**simulate))
    return replace(builders.study_spec(), model=model, engine=engine)


def candidate(**args: Any) -> Candidate:
    whole = {**ARGS, **args}
    return Candidate(params={}, args=whole, role=Role.SEARCH, fingerprint=fingerprint("simulated", MODEL, whole))


def plan(count: int = 200, concurrency: int | None = None, rps: float = 20.0, output: int = 50) -> LevelPlan:
    arrivals = np.cumsum(np.random.default_rng(1).exponential(1 / rps, count)).tolist()
    requests = tuple(
        RequestPlan(
            index=i,
            at_s=None if concurrency else arrivals[i],
            output_tokens=output,
            prompt_tokens=100,
            prompt_ids=tuple(range(100)),
            prefix_group=0,
            prefix_tokens=64,
        )
        for i in range(count)
    )
    return LevelPlan(
        requests=requests,
        offered_rps=None if concurrency else rps,
        concurrency=concurrency,
        warmup_s=1.0,
        duration_s=8.0,
        seed=1,
    )


def launched(args: Mapping[str, Any], level: LevelPlan, trial: str = "0001") -> LevelRecord:
    engine = engine_for(study())
    with engine.launch(candidate(**args), trial_dir=Path(trial), gpus=(), on_phase=lambda _: None) as server:
        assert isinstance(server, VirtualServer)
        return server.run_level(level)


def direct(level: LevelPlan, **args: Any) -> LevelRecord:
    shape, gpu = shape_of(MODEL), gpu_of("h100")
    assert shape is not None
    assert gpu is not None
    return run_level(Launch(config=from_vllm_args({**ARGS, **args}, shape, gpu), seed=5), level, 0)[0]


def failure_of(args: Mapping[str, Any], model: str = MODEL) -> LaunchError:
    engine = engine_for(study(model))
    with (
        pytest.raises(LaunchError) as caught,
        engine.launch(candidate(**args), trial_dir=Path("1"), gpus=(), on_phase=lambda _: None),
    ):
        pass
    return caught.value


def test_an_open_level_records_each_request_as_a_client_would() -> None:
    record = launched({}, plan())

    assert [r.index for r in record.requests] == sorted(r.index for r in record.requests)
    for request in record.requests:
        assert request.error is None
        assert request.scheduled_s == request.sent_s < 9.0
        assert request.warmup == (request.sent_s < 1.0)
        assert len(request.chunk_s) == request.output_tokens == 50
        assert request.sent_s < request.chunk_s[0] <= request.chunk_s[-1] == request.done_s
    assert sum(r.cached_tokens or 0 for r in record.requests) == 64 * (len(record.requests) - 1)


def test_no_request_starts_after_the_window() -> None:
    assert len(launched({}, plan(count=400, rps=20)).requests) < 250


def test_a_closed_level_keeps_its_concurrency_and_takes_what_it_needs() -> None:
    record = launched({}, plan(count=5000, concurrency=4))

    begun = sorted((r.sent_s, 1) for r in record.requests)
    ended = sorted((r.done_s or 1e9, -1) for r in record.requests)
    level = np.cumsum([step for _, step in sorted([*begun, *ended])])
    assert level.max() == 4
    assert 50 < len(record.requests) < 5000
    assert max(r.sent_s for r in record.requests) <= 9.0


def test_what_is_unfinished_after_the_drain_is_cut() -> None:
    record = direct(replace(plan(rps=500, count=4000, output=500), drain_s=0.5), max_num_seqs=8)

    errors = {r.error for r in record.requests}
    assert errors == {None, "cut"}
    assert all(r.done_s is None and r.output_tokens is None for r in record.requests if r.error)


def test_chunks_follow_the_stream_interval() -> None:
    record = direct(plan(count=10), stream_interval=20)

    assert {len(r.chunk_s) for r in record.requests} == {4}  # tokens 1, 21, 41 and the rest


def test_a_request_longer_than_the_engine_takes_gets_a_400() -> None:
    long = replace(plan(count=3).requests[1], output_tokens=2000)
    level = replace(plan(count=3), requests=(plan(count=3).requests[0], long, plan(count=3).requests[2]))

    record = direct(level)

    assert [r.status for r in record.requests] == [200, 400, 200]
    assert "1024" in (record.requests[1].error or "")


def test_the_same_trial_gives_the_same_record_and_another_differs_a_little() -> None:
    first, again, other = (launched({}, plan(), trial) for trial in ("0001", "0001", "0002"))

    assert first == again
    assert first != other

    def mean_tpot(record: LevelRecord) -> float:
        return float(np.mean([r.tpot_ms for r in record.requests if r.tpot_ms is not None]))

    assert mean_tpot(other) == pytest.approx(mean_tpot(first), rel=0.15)


def test_launches_vary_by_three_percent() -> None:
    speeds = [Launch(config=None, seed=seed_of(i)).speed for i in range(400)]  # type: ignore[arg-type]

    assert 0.02 < np.std(np.log(speeds)) < 0.03


@pytest.mark.parametrize(
    ("args", "outcome", "says"),
    [
        ({"max_num_batched_tokens": 8, "max_num_seqs": 64}, Outcome.BAD_CONFIG, "greater than or equal to"),
        ({"tensor_parallel_size": 2}, Outcome.BAD_CONFIG, "number of available GPUs"),
        ({"gpu_memory_utilization": 0.2}, Outcome.OOM_STARTUP, "No available memory for the cache blocks"),
        ({"gpu_memory_utilization": 0.99}, Outcome.OOM_STARTUP, "CUDA out of memory"),
        ({"gpu_memory_utilization": 1.0}, Outcome.OOM_STARTUP, "Free memory on device"),
    ],
)
def test_a_launch_fails_as_vllm_would(args: dict[str, Any], outcome: Outcome, says: str) -> None:
    error = failure_of(args)

    assert (error.failure.outcome, error.failure.fault, error.failure.phase) == (
        outcome,
        Fault.CANDIDATE,
        Phase.LAUNCH,
    )
    assert says in error.failure.cause
    assert error.cleanup is not None


def test_a_model_larger_than_the_gpu_runs_out_of_memory() -> None:
    assert failure_of({}, "meta-llama/Llama-3.1-70B").failure.outcome is Outcome.OOM_STARTUP


def test_the_server_tells_what_it_resolved_and_counts() -> None:
    engine = engine_for(study())
    with engine.launch(candidate(seed=3), trial_dir=Path("1"), gpus=(), on_phase=lambda _: None) as server:
        assert isinstance(server, VirtualServer)
        server.run_level(plan())
        assert server.resolved()["max_num_seqs"] == 1024
        assert server.warnings() == ("not simulated, so without effect: seed",)
        assert server.metrics()["vllm:generation_tokens_total"] == 50 * len(server.run_level(plan()).requests)
        assert server.failure(Phase.LOAD) is None
        assert server.cleanup is None
    assert server.cleanup is not None
    assert server.cleanup.left_processes == 0


def test_a_second_launch_of_the_same_compilation_is_warm() -> None:
    engine = engine_for(study())
    seconds = []
    for _ in range(2):
        with engine.launch(candidate(), trial_dir=Path("1"), gpus=(), on_phase=lambda _: None) as server:
            seconds.append(server.startup_s)

    assert seconds[1] < seconds[0] / 2


@pytest.mark.parametrize(
    ("spec", "path"),
    [
        (study(gpu="tpu"), ("engine", "simulate", "gpu")),
        (study(model="no/such-model"), ("model",)),
        (study(faults=("hang_at_start",)), ("engine", "simulate", "faults")),
    ],
)
def test_what_cannot_be_simulated_is_a_problem_of_the_study(spec: StudySpec, path: tuple[str, ...]) -> None:
    assert path in [problem.path for problem in engine_for(spec).problems(spec)]


def test_a_sound_study_has_no_problems() -> None:
    engine = engine_for(study())

    assert engine.simulated
    assert list(engine.problems(study())) == []
