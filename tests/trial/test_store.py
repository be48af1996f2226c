"""The run directory: what is written comes back equal, half-written files never show, strange files are refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import FloatRange, LogNormalLength, ParameterSpec, PrefixSpec, WorkloadSpec
from autotune.records.trial import (
    Cleanup,
    ClientHealth,
    LevelRecord,
    Measurement,
    Outcome,
    RequestRecord,
)
from autotune.trial.store import RunDirectory, write_atomically
from tests.builders import estimate, objective, space_spec, study_spec, trial, verdict


def test_a_trial_comes_back_equal(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    failed = trial(
        3,
        outcome=Outcome.OOM_STARTUP,
        params={"ratio": 1.0},
        args={"a": 1, "flag": False, "nested": {"x": [1, 2.5, "s"]}},
    )
    measured = trial(4, value=1.5)
    measurement = Measurement(
        offered_rps=None,
        concurrency=8,
        duration_s=10.0,
        requests=5,
        errors=0,
        values={"ttft_ms.p90": estimate(10.0)},
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=0.1),
    )
    from dataclasses import replace

    measured = replace(
        measured,
        measurements=(measurement,),
        cleanup=Cleanup(left_processes=0, port_free=True),
        resolved={"block_size": 16},
        versions={"vllm": "0.32.0", "driver": None},
        verdict=verdict("unsure"),
    )
    for record in (failed, measured):
        run.write_trial(record)
    assert run.trials() == [failed, measured]


def test_a_study_comes_back_equal(tmp_path: Path) -> None:
    from dataclasses import replace

    run = RunDirectory(tmp_path)
    workload = WorkloadSpec(
        input_tokens=LogNormalLength(median=100.0, sigma=0.5, high=900), prefix=PrefixSpec(tokens=64, groups=3)
    )
    space = replace(
        space_spec(),
        parameters=(
            *space_spec().parameters,
            ParameterSpec(name="gpu_memory_utilization", domain=FloatRange(low=0.5, high=0.9)),
        ),
    )
    spec = study_spec(search_space=space, objective=objective(workload=workload))
    run.write_spec(spec)
    assert run.exists()
    assert run.spec() == spec


def test_requests_come_back_with_their_level(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    request = RequestRecord(
        index=0, scheduled_s=0.1, sent_s=0.2, chunk_s=(0.3, 0.4), done_s=0.5, asked_output_tokens=2, error="naïve\n"
    )
    level = LevelRecord(
        plan_seed=1,
        offered_rps=1.0,
        concurrency=None,
        window_s=(0.0, 1.0),
        requests=(request, request),
        client=ClientHealth(send_lag_p99_ms=0.1, cpu_ratio=0.1),
    )
    run.write_requests(7, [level, level])
    assert list(run.requests(7)) == [(0, request), (0, request), (1, request), (1, request)]


def test_a_failing_write_leaves_the_old_file_and_no_temporary_one(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "text, not bytes")  # type: ignore[arg-type]
    assert path.read_bytes() == b"old"
    assert [found.name for found in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'{"schema_version": 1}',
        b'{"schema_version": 99}',
        b"\xff\xfe",
        b'{"outcome": "great"}',
    ],
)
def test_a_strange_record_is_refused_with_its_path(tmp_path: Path, content: bytes) -> None:
    run = RunDirectory(tmp_path)
    path = run.trial_directory(0) / "trial.json"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"trial\.json"):
        run.trials()


def test_a_folder_without_a_study_is_no_run(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        RunDirectory(tmp_path).spec()


def test_not_a_number_becomes_null(tmp_path: Path) -> None:
    run = RunDirectory(tmp_path)
    run.write_trial(trial(0, value=float("nan")))
    stored = json.loads((run.trial_directory(0) / "trial.json").read_text())
    assert stored["objective"]["value"] is None


def test_what_the_file_system_refuses_is_the_environments_fault_and_names_the_file(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    run = RunDirectory(tmp_path / "run")
    with pytest.raises(EnvironmentFault, match=r"trial\.json can't be written: Not a directory"):
        run.write_trial(trial(0))
    with pytest.raises(EnvironmentFault, match="0000 can't be written"):
        run.make_trial_directory(0)
