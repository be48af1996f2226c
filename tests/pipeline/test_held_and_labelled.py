"""What a study says of the machine: whose GPU it is, whether a start-up was cold, and when the load was too much."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.hardware import Gpu
from autotune.errors import EnvironmentFault
from autotune.pipeline import run_study
from autotune.records.spec import BudgetSpec, EngineKind, EngineSpec, HardwareSpec, Slo, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase
from autotune.trial.gpu_locks import gpus_held
from autotune.trial.store import RunDirectory
from tests.builders import study_spec
from tests.fakes import ListView, Script, ScriptedEngine, failure


@pytest.fixture(autouse=True)
def locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_GPU_LOCKS", str(tmp_path / "locks"))


def on_gpu(**changes: Any) -> StudySpec:
    """A study on a GPU of this machine that NVML may not know."""
    return study_spec(engine=EngineSpec(kind=EngineKind.VLLM), hardware=HardwareSpec(gpus=("none",)), **changes)


def run(folder: Path, script: Script, spec: StudySpec, *, resume: bool = False) -> tuple[RunDirectory, ListView]:
    directory, view = RunDirectory(folder / "run"), ListView()
    run_study(spec, ScriptedEngine(script), directory, view, resume=resume)
    return directory, view


def test_a_study_holds_its_gpu_while_it_runs_and_not_after(tmp_path: Path) -> None:
    busy: list[str] = []

    def another(candidate: Candidate, launches: int) -> float:
        with pytest.raises(EnvironmentFault, match="held by study test") as caught:
            run(tmp_path / "other", lambda *_: 50.0, on_gpu(budget=BudgetSpec(trials=1)))
        busy.append(caught.value.message)
        return 50.0

    run(tmp_path / "one", another, on_gpu(budget=BudgetSpec(trials=1)))
    run(tmp_path / "two", lambda *_: 50.0, on_gpu(budget=BudgetSpec(trials=1)))
    assert len(busy) == 1


def test_a_study_that_is_refused_a_gpu_leaves_no_run_behind(tmp_path: Path) -> None:
    with gpus_held([Gpu(id="none")], "mine", tell=print), pytest.raises(EnvironmentFault, match="GPU none"):
        run(tmp_path, lambda *_: 50.0, on_gpu())
    assert not (tmp_path / "run").exists()


def test_simulated_studies_hold_no_gpu(tmp_path: Path) -> None:
    with gpus_held([Gpu(id="0")], "mine", tell=print):
        run(tmp_path, lambda *_: 50.0, study_spec(hardware=HardwareSpec(gpus=(0,)), budget=BudgetSpec(trials=1)))


def test_the_first_start_up_is_cold_the_others_warm_and_a_failed_one_neither(tmp_path: Path) -> None:
    def third_fails(candidate: Candidate, launches: int) -> Failure | float | BaseException:
        if launches == 5:
            return KeyboardInterrupt()
        return failure(Outcome.OOM_STARTUP) if launches == 3 else 50.0

    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, third_fails, study_spec())
    directory, _ = run(tmp_path, lambda *_: 50.0, study_spec(), resume=True)
    kinds = [record.startup_kind for record in directory.trials() if record.outcome is not Outcome.RULED_OUT]
    assert kinds == ["cold", "warm", None, "warm", "warm", "warm"]


def test_where_start_ups_are_judged_the_cold_one_is_made_again_once_so_that_like_meets_like(tmp_path: Path) -> None:
    spec = study_spec()
    objective = replace(spec.objective, slos=(*spec.objective.slos, Slo(metric="startup_s", limit=60.0)))
    engine, view = ScriptedEngine(lambda *_: 50.0), ListView()
    directory = RunDirectory(tmp_path / "run")
    run_study(replace(spec, objective=objective), engine, directory, view)
    kinds = [record.startup_kind for record in directory.trials() if record.outcome is not Outcome.RULED_OUT]
    assert (kinds, len(engine.launched)) == (["warm"] * 6, 7)
    assert [line for line in view.lines if "this one was cold" in line] == [
        "trial 0 is tried again: start-ups are judged, and this one was cold"
    ]


@pytest.mark.parametrize(("deaths", "kept"), [(1, Outcome.OK), (2, Outcome.UNKNOWN)])
def test_an_engine_that_ends_under_load_without_a_word_is_tried_once_more_and_teaches_nothing(
    tmp_path: Path, deaths: int, kept: Outcome
) -> None:
    silent = replace(failure(Outcome.UNKNOWN), phase=Phase.LOAD, cause="a worker died\nwithout a word")

    def dies(candidate: Candidate, launches: int) -> Failure | float:
        return silent if 2 <= launches < 2 + deaths else 50.0

    directory, view = run(tmp_path, dies, study_spec())
    launched = [record for record in directory.trials() if record.outcome is not Outcome.RULED_OUT]
    assert [record.outcome for record in launched] == [Outcome.OK, kept, *[Outcome.OK] * 4]
    assert [line for line in view.lines if "tried again" in line] == ["trial 1 is tried again: without a word"]


def test_a_load_that_the_client_can_not_make_is_tried_twice_kept_with_its_remedy_and_taught_to_nobody(
    tmp_path: Path,
) -> None:
    import optuna

    directory, view = run(tmp_path, lambda _, launches: -50.0 if launches in (2, 3) else 50.0, study_spec())
    (limited,) = [record for record in directory.trials() if record.outcome is Outcome.CLIENT_LIMITED]
    assert limited.failure is not None
    assert limited.failure.fault is Fault.LOAD
    assert "lower the load" in limited.failure.remedy
    assert any("is tried again: client limited" in line for line in view.lines)
    study = optuna.load_study(study_name="test", storage=directory.storage_url)
    assert study.trials[limited.number].state is optuna.trial.TrialState.FAIL
