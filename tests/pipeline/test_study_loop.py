"""The study loop over a scripted engine: what is launched, learned, kept, resumed and handed over."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from optuna.trial import TrialState

from autotune.engines.vllm.engine import VllmEngine
from autotune.errors import EnvironmentFault, InputError
from autotune.pipeline import run_study
from autotune.records.spec import (
    BudgetSpec,
    Choice,
    EngineKind,
    EngineSpec,
    FixedLength,
    ParameterSpec,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.summary import StudySummary
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Role
from autotune.trial.store import RunDirectory
from tests.builders import objective, space_spec, study_spec
from tests.fakes import ListView, Script, ScriptedEngine, failure


def _ttft_by_seqs(candidate: Candidate, _: int) -> float:
    return 50.0 + float(candidate.args.get("max_num_seqs", 256)) / 10


def _run(
    path: Path, script: Script, spec: StudySpec | None = None, *, resume: bool = False
) -> tuple[StudySummary, ScriptedEngine, RunDirectory]:
    engine, run = ScriptedEngine(script), RunDirectory(path / "run")
    summary = run_study(spec or study_spec(), engine, run, ListView(), resume=resume)
    return summary, engine, run


def test_a_study_launches_its_budget_and_hands_over_the_best(tmp_path: Path) -> None:
    summary, engine, run = _run(tmp_path, _ttft_by_seqs)
    records = run.trials()
    assert len(engine.launched) == 6
    assert engine.launched[0].role is Role.REFERENCE
    assert summary.finished
    assert summary.best is not None
    best = next(record for record in records if record.number == summary.best)
    fastest = min(records, key=lambda record: float(record.args.get("max_num_seqs", 256)))
    assert best.objective is not None
    assert fastest.objective is not None
    assert best.objective.value == pytest.approx(fastest.objective.value, rel=0.02)
    assert (run.best / "best.json").exists()
    assert engine.open_servers == 0


def test_nothing_is_launched_twice_and_a_small_space_ends_the_study(tmp_path: Path) -> None:
    space = SpaceSpec(
        name="tiny",
        engine=space_spec().engine,
        parameters=(ParameterSpec(name="block_size", domain=Choice(values=(16, 32, 64))),),
    )
    spec = study_spec(search_space=space, budget=BudgetSpec(trials=40))
    summary, engine, _ = _run(tmp_path, lambda *_: 50.0, spec)
    # The reference names no size and runs with 16, the engine's own: 16 by name would be the same once more.
    assert "block_size" not in engine.launched[0].args
    assert sorted(candidate.args.get("block_size", 16) for candidate in engine.launched) == [16, 32, 64]
    assert "has been launched" in summary.stop_reason


def test_optuna_and_the_records_tell_the_same_story(tmp_path: Path) -> None:
    import optuna

    def script(candidate: Candidate, launches: int) -> Failure | float:
        return failure(Outcome.OOM_STARTUP) if launches == 3 else _ttft_by_seqs(candidate, launches)

    _, _, run = _run(tmp_path, script)
    study = optuna.load_study(study_name="test", storage=run.storage_url)
    for record in run.trials():
        held = study.trials[record.number]
        assert held.user_attrs["outcome"] == record.outcome.value
        if record.outcome.measured:
            assert record.objective is not None
            assert held.value == record.objective.value
        assert dict(record.params) == held.params or record.role is Role.REFERENCE
    crashed = next(record for record in run.trials() if record.outcome is Outcome.OOM_STARTUP)
    assert study.trials[crashed.number].state is TrialState.PRUNED
    assert study.trials[crashed.number].constraints["launch"] == 2.0


def test_when_nothing_meets_the_objective_there_is_a_nearest_and_no_best(tmp_path: Path) -> None:
    summary, _, run = _run(tmp_path, lambda candidate, _: 5_000.0 + candidate.args.get("max_num_seqs", 300))
    assert summary.best is None
    nearest = next(record for record in run.trials() if record.number == summary.nearest)
    assert nearest.args.get("max_num_seqs", 300) == min(r.args.get("max_num_seqs", 300) for r in run.trials())
    assert not run.best.exists()


@pytest.mark.parametrize("launches", [1, 2, 4])
def test_an_interrupt_stops_the_engine_and_a_resume_repeats_nothing(tmp_path: Path, launches: int) -> None:
    def interrupting(candidate: Candidate, so_far: int) -> float | BaseException:
        return KeyboardInterrupt() if so_far == launches else _ttft_by_seqs(candidate, so_far)

    engine, run = ScriptedEngine(interrupting), RunDirectory(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        run_study(study_spec(), engine, run, ListView())
    assert engine.open_servers == 0
    before = run.trials()
    assert len(before) == launches - 1
    assert run.summary().stop_reason == "interrupted"
    summary, second, _ = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert run.trials()[: len(before)] == before
    assert len(second.launched) == 6 - len(before)
    assert summary.launched == 6
    launched = [record.fingerprint for record in run.trials() if record.outcome is not Outcome.RULED_OUT]
    assert len(set(launched)) == len(launched) == 6


def test_a_resume_rebuilds_a_storage_that_lost_or_never_had_the_trials(tmp_path: Path) -> None:
    import optuna

    _, _, run = _run(tmp_path, _ttft_by_seqs)
    (run.path / "study.db").unlink()
    summary, engine, _ = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert engine.launched == []
    assert summary.launched == 6
    study = optuna.load_study(study_name="test", storage=run.storage_url)
    assert [trial.number for trial in study.trials if trial.value is not None] == [r.number for r in run.trials()]


def test_a_finished_study_goes_on_with_a_larger_budget(tmp_path: Path) -> None:
    _run(tmp_path, _ttft_by_seqs)
    summary, engine, _ = _run(tmp_path, _ttft_by_seqs, study_spec(budget=BudgetSpec(trials=8)), resume=True)
    assert len(engine.launched) == 2
    assert summary.launched == 8


def test_a_started_study_is_not_overwritten(tmp_path: Path) -> None:
    _run(tmp_path, _ttft_by_seqs)
    with pytest.raises(InputError, match="--resume"):
        _run(tmp_path, _ttft_by_seqs)


def test_a_changed_study_is_not_resumed(tmp_path: Path) -> None:
    _run(tmp_path, _ttft_by_seqs)
    with pytest.raises(InputError, match="objective"):
        _run(tmp_path, _ttft_by_seqs, study_spec(objective=objective(confidence=0.9)), resume=True)


def test_resuming_nothing_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no study to resume"):
        _run(tmp_path, _ttft_by_seqs, resume=True)
    assert list(tmp_path.iterdir()) == []


def test_the_users_setup_ends_the_study_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="scripted"):
        _run(tmp_path, lambda *_: failure(Outcome.LAUNCH_FAILED, Fault.SETUP))
    assert RunDirectory(tmp_path / "run").trials() == []


def test_a_log_that_was_never_begun_is_not_pointed_at(tmp_path: Path) -> None:
    spec = study_spec(engine=EngineSpec(kind=EngineKind.VLLM, command=("/nowhere/vllm",)))
    with pytest.raises(EnvironmentFault, match="/nowhere/vllm") as caught:
        run_study(spec, VllmEngine(spec), RunDirectory(tmp_path / "run"), ListView())
    assert "engine.command" in caught.value.hint
    assert "log" not in caught.value.hint


def test_a_study_of_which_nothing_starts_for_unknown_reasons_ends_before_its_budget(tmp_path: Path) -> None:
    launches: list[int] = []

    def unexplained(_: Candidate, so_far: int) -> Failure:
        launches.append(so_far)
        return failure(Outcome.UNKNOWN)

    with pytest.raises(EnvironmentFault, match="no rule knows"):
        _run(tmp_path, unexplained)
    assert len(launches) == 3


def test_unknown_failures_beside_a_trial_that_ran_do_not_end_a_study(tmp_path: Path) -> None:
    summary, _, _ = _run(tmp_path, lambda c, n: failure(Outcome.UNKNOWN) if n > 1 else _ttft_by_seqs(c, n))
    assert summary.launched == 6


def test_a_reference_that_does_not_fit_is_learned_and_replaced_by_the_nearest_that_runs(tmp_path: Path) -> None:
    space = replace(space_spec(), derived={"max_model_len": "longest_request_tokens"})

    def script(candidate: Candidate, launches: int) -> Failure | float:
        fits = candidate.args.get("max_model_len") == 160
        return _ttft_by_seqs(candidate, launches) if fits else failure(Outcome.OOM_STARTUP)

    summary, engine, run = _run(tmp_path, script, study_spec(search_space=space))
    first, second, *rest = run.trials()
    assert (first.role, first.outcome) == (Role.REFERENCE, Outcome.OOM_STARTUP)
    assert (second.role, second.outcome.measured, dict(second.args)) == (Role.REFERENCE, True, {"max_model_len": 160})
    assert all(record.role is Role.SEARCH for record in rest)
    assert summary.reference == second.number
    assert summary.launched == len(engine.launched) == 6


def test_a_resume_does_not_launch_a_failed_reference_again(tmp_path: Path) -> None:
    def script(candidate: Candidate, launches: int) -> Failure | float | BaseException:
        if candidate.role is Role.REFERENCE:
            return failure(Outcome.OOM_STARTUP)
        return KeyboardInterrupt() if launches == 3 else _ttft_by_seqs(candidate, launches)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, script)
    summary, engine, _ = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert all(candidate.role is Role.SEARCH for candidate in engine.launched)
    assert summary.reference is None


def test_what_the_machine_spoils_is_tried_again_and_never_taught(tmp_path: Path) -> None:
    def once(candidate: Candidate, launches: int) -> Failure | float:
        spoilt = failure(Outcome.ENVIRONMENT, Fault.ENVIRONMENT)
        return spoilt if launches == 2 else _ttft_by_seqs(candidate, launches)

    summary, engine, run = _run(tmp_path, once)
    assert len(engine.launched) == 7
    assert all(record.outcome.measured for record in run.trials())
    assert summary.launched == 6


@pytest.mark.parametrize(("overloads", "launches"), [(1, 7), (2, 7)])
def test_a_client_that_cannot_keep_up_gets_a_second_try(tmp_path: Path, overloads: int, launches: int) -> None:
    def busy(candidate: Candidate, launches: int) -> float:
        ttft_ms = _ttft_by_seqs(candidate, launches)
        return -ttft_ms if launches <= overloads else ttft_ms

    summary, engine, run = _run(tmp_path, busy)
    assert len(engine.launched) == launches
    assert summary.launched == 6
    first = run.trials()[0].outcome
    assert first is (Outcome.OK if overloads == 1 else Outcome.CLIENT_LIMITED)


def test_a_machine_that_stays_broken_ends_the_study_resumably(tmp_path: Path) -> None:
    def broken(candidate: Candidate, launches: int) -> Failure | float:
        spoilt = failure(Outcome.ENVIRONMENT, Fault.ENVIRONMENT)
        return spoilt if launches > 2 else _ttft_by_seqs(candidate, launches)

    with pytest.raises(EnvironmentFault, match="3 times"):
        _run(tmp_path, broken)
    assert len(RunDirectory(tmp_path / "run").trials()) == 2
    summary, _, _ = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert summary.launched == 6


def test_our_own_fault_under_load_is_kept_with_its_traceback(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match="ZeroDivisionError"):
        _run(tmp_path, lambda *_: ZeroDivisionError("ours"))


def test_a_second_tuner_on_the_same_run_is_refused(tmp_path: Path) -> None:
    inner: list[str] = []

    def nested(candidate: Candidate, launches: int) -> float:
        if launches == 1:
            with pytest.raises(InputError, match="another autotune"):
                _run(tmp_path, _ttft_by_seqs, resume=True)
            inner.append("refused")
        return _ttft_by_seqs(candidate, launches)

    _run(tmp_path, nested)
    assert inner == ["refused"]


def test_the_same_seed_proposes_the_same_candidates(tmp_path: Path) -> None:
    _, first, _ = _run(tmp_path / "a", _ttft_by_seqs)
    _, second, _ = _run(tmp_path / "b", _ttft_by_seqs)
    _, other, _ = _run(tmp_path / "c", _ttft_by_seqs, study_spec(seed=2))
    assert first.launched == second.launched != other.launched


def test_a_run_directory_that_can_not_be_made_is_the_environments_fault(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("a file")
    with pytest.raises(EnvironmentFault, match="can't be written: File exists"):
        _run(tmp_path, _ttft_by_seqs)


def test_a_disk_that_fills_up_stops_the_study_with_that_reason_and_a_resume_goes_on(tmp_path: Path) -> None:
    """Folders in the place of files stand for what can no longer be written."""
    run = tmp_path / "run"
    blocked = [run / "trials" / "0001" / "trial.json", run / "summary.json"]

    def filling(candidate: Candidate, launches: int) -> float:
        if launches == 2:
            blocked[1].unlink()
            for path in blocked:
                path.mkdir()
        return _ttft_by_seqs(candidate, launches)

    with pytest.raises(EnvironmentFault, match=r"trial\.json can't be written"):
        _run(tmp_path, filling)
    for path in blocked:
        path.rmdir()
    summary, engine, _ = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert summary.launched == 6
    assert len(engine.launched) == 5


def test_trials_whose_study_is_lost_are_not_overwritten(tmp_path: Path) -> None:
    _, _, run = _run(tmp_path, _ttft_by_seqs)
    before = run.trials()
    run.spec_file.unlink()
    with pytest.raises(InputError, match=r"study\.json is gone"):
        _run(tmp_path, _ttft_by_seqs)
    assert run.trials() == before


def test_a_load_client_that_was_killed_costs_another_try_not_the_study(tmp_path: Path) -> None:
    def killed(candidate: Candidate, launches: int) -> float | BaseException:
        return EnvironmentFault("the load client ended") if launches == 2 else _ttft_by_seqs(candidate, launches)

    summary, engine, _ = _run(tmp_path, killed)
    assert len(engine.launched) == 7
    assert summary.launched == 6


def test_a_workload_that_can_not_be_built_is_the_users_to_mend(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("{")
    workload = WorkloadSpec(dataset=str(rows), output_tokens=FixedLength(tokens=8))
    spec = study_spec(objective=objective(workload=workload))
    with pytest.raises(InputError, match=r"rows\.jsonl:1: not JSON"):
        _run(tmp_path, _ttft_by_seqs, spec)


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
def test_a_signal_ends_the_study_unless_it_was_ignored_before_as_nohup_does(
    tmp_path: Path, number: signal.Signals
) -> None:
    def signalled(candidate: Candidate, launches: int) -> float:
        if launches == 2:
            os.kill(os.getpid(), number)
        return _ttft_by_seqs(candidate, launches)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path / "heeded", signalled)
    before = signal.signal(number, signal.SIG_IGN)
    try:
        summary, _, _ = _run(tmp_path / "ignored", signalled)
    except KeyboardInterrupt:
        pytest.fail("the signal was heeded although it had been ignored")
    finally:
        signal.signal(number, before)
    assert summary.launched == 6
