"""What can't work costs a study no launch: it is recorded with its reason, told to the sampler, and counted."""

from __future__ import annotations

from pathlib import Path

import pytest
from optuna.trial import TrialState

from autotune.errors import EnvironmentFault
from autotune.pipeline import run_study
from autotune.records.spec import Args, BudgetSpec, LoadSpec, Slo, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec
from tests.fakes import Check, ListView, ScriptedEngine

SMALL = 40


def refuses_large(args: Args) -> Failure | None:
    """Refuses everything but small batches, the engine's defaults too were they large."""
    if args.get("max_num_seqs", 0) <= SMALL:
        return None
    cause = f"Value error, max_num_seqs {args['max_num_seqs']} is too large"
    return Failure(
        outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=cause, remedy="lower it"
    )


def run(
    path: Path, check: Check, spec: StudySpec | None = None, *, resume: bool = False
) -> tuple[StudySummary, ScriptedEngine, RunDirectory, ListView]:
    engine, directory, view = ScriptedEngine(lambda *_: 50.0, check), RunDirectory(path / "run"), ListView()
    summary = run_study(spec or study_spec(), engine, directory, view, resume=resume)
    return summary, engine, directory, view


def test_what_the_engine_itself_refuses_costs_no_launch(tmp_path: Path) -> None:
    import optuna

    summary, engine, directory, _ = run(tmp_path, refuses_large)
    assert len(engine.launched) == summary.launched == 6
    assert all(candidate.args.get("max_num_seqs", 0) <= SMALL for candidate in engine.launched)
    refused = [record for record in directory.trials() if record.ruled_out_by == "engine's own check"]
    assert refused
    assert summary.ruled_out_by["engine's own check"] == len(refused)
    assert sum(summary.ruled_out_by.values()) == summary.ruled_out
    study = optuna.load_study(study_name="test", storage=directory.storage_url)
    for record in refused:
        assert record.failure is not None
        assert record.outcome is record.failure.outcome is Outcome.RULED_OUT
        assert record.failure.cause == f"Value error, max_num_seqs {record.args['max_num_seqs']} is too large"
        assert record.failure.remedy == "lower it"
        assert record.argv == ()
        held = study.trials[record.number]
        assert held.state is TrialState.PRUNED
        assert held.params == dict(record.params)
        assert held.constraints["launch"] > 0


def test_a_refused_candidate_is_not_asked_about_again(tmp_path: Path) -> None:
    asked: list[Args] = []

    def check(args: Args) -> Failure | None:
        asked.append(args)
        return refuses_large(args)

    run(tmp_path, check)
    refused = [str(args) for args in asked if refuses_large(args)]
    assert len(refused) == len(set(refused))


def test_the_users_set_up_ends_the_study_before_a_launch_is_spent(tmp_path: Path) -> None:
    def broken(args: Args) -> Failure | None:
        if not args:
            return None  # the reference: it ran
        cause = "error: unrecognized arguments: --max-num-seqs"
        return Failure(outcome=Outcome.ENVIRONMENT, fault=Fault.SETUP, phase=Phase.LAUNCH, cause=cause, remedy="remove")

    with pytest.raises(EnvironmentFault, match="unrecognized arguments") as caught:
        run(tmp_path, broken)
    assert caught.value.hint == "remove"
    assert [record.role.value for record in RunDirectory(tmp_path / "run").trials()] == ["reference"]


def test_a_check_that_refuses_what_runs_is_ignored(tmp_path: Path) -> None:
    def nonsense(args: Args) -> Failure | None:
        return Failure(outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause="no", remedy="")

    summary, engine, _, view = run(tmp_path, nonsense)
    assert len(engine.launched) == 6
    assert "engine's own check" not in summary.ruled_out_by
    assert sum("not used any more" in line for line in view.lines) == 1


def test_a_space_of_which_nothing_can_run_ends_and_a_resume_does_not_start_over(tmp_path: Path) -> None:
    def only_the_reference(args: Args) -> Failure | None:
        return refuses_large({"max_num_seqs": 1000}) if args else None

    spec = study_spec(budget=BudgetSpec(trials=2))
    summary, engine, directory, _ = run(tmp_path, only_the_reference, spec)
    assert len(engine.launched) == 1
    assert summary.ruled_out == 40
    assert "ruled out before a launch" in summary.stop_reason
    _, engine, _, _ = run(tmp_path, only_the_reference, spec, resume=True)
    assert engine.launched == []
    assert len(directory.trials()) == 41


def test_a_load_that_can_not_settle_an_slo_is_said_at_the_start(tmp_path: Path) -> None:
    load = LoadSpec(poisson_rps=1, duration_s=10, warmup_s=1)
    asked = objective(slos=(Slo(metric="ttft_ms.p99", limit=500),), load=load)
    view, lines = ListView(), list[str]()

    def script(candidate: Candidate, launches: int) -> BaseException:
        lines.extend(view.lines)
        return KeyboardInterrupt()

    with pytest.raises(KeyboardInterrupt):
        run_study(study_spec(objective=asked), ScriptedEngine(script), RunDirectory(tmp_path / "run"), view)
    assert sum("only ever be unsure" in line for line in lines) == 1
