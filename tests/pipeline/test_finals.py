"""Finals in the study loop, over a scripted engine: launches, files, Optuna's story, and what a stop leaves."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from optuna.trial import TrialState

from autotune.pipeline import run_study
from autotune.records.finals import FinalStage
from autotune.records.spec import BudgetSpec, FinalsSpec, SamplerSpec, StudySpec
from autotune.records.trial import Candidate, Outcome, Role, TrialRecord
from autotune.report.show import as_dict
from autotune.trial.store import RunDirectory
from tests.builders import study_spec
from tests.fakes import ListView, Script, ScriptedEngine, failure

SPEC = study_spec(
    finals=FinalsSpec(finalists=2, rounds=2, soak_s=20.0, shifts=False),
    sampler=SamplerSpec(kind="random"),
    budget=BudgetSpec(trials=4),
)


def _ttft_by_seqs(candidate: Candidate, _: int) -> float:
    return 50.0 + float(candidate.args.get("max_num_seqs", 256))


def _run(path: Path, script: Script, spec: StudySpec = SPEC, *, resume: bool = False) -> tuple[Any, ScriptedEngine]:
    engine = ScriptedEngine(script)
    return run_study(spec, engine, RunDirectory(path / "run"), ListView(), resume=resume), engine


def _trials(path: Path) -> list[TrialRecord]:
    return RunDirectory(path / "run").trials()


def _launched(path: Path) -> list[TrialRecord]:
    return [record for record in _trials(path) if record.outcome is not Outcome.RULED_OUT]


def test_finals_come_on_top_of_the_budget_and_what_they_measured_is_handed_over(tmp_path: Path) -> None:
    summary, engine = _run(tmp_path, _ttft_by_seqs)
    finals = [record for record in _trials(tmp_path) if record.final is not None]
    assert summary.launched == 4
    assert len(engine.launched) == 4 + len(finals)
    assert all(record.role is Role.FINAL and record.outcome is Outcome.OK for record in finals)
    assert [record.final.stage for record in finals if record.final][-1] is FinalStage.SOAK
    best = json.loads((tmp_path / "run/best/best.json").read_text())
    assert best["trial"] == summary.best == summary.finals.winner
    assert best["gain_ratio"]["low"] == summary.gain.low > 1
    assert best["objective"]["value"] == summary.objective.value
    assert best["finals"]["soak"]["failed"] is None
    shown = as_dict(RunDirectory(tmp_path / "run"))
    assert any(line.startswith("Finals: ") for line in shown["details"])
    assert any(line.startswith("Soak: ") for line in shown["details"])


def test_finals_are_trials_of_the_optuna_study_that_samplers_are_not_told_wrong(tmp_path: Path) -> None:
    import optuna

    _run(tmp_path, _ttft_by_seqs)
    study = optuna.load_study(study_name="test", storage=RunDirectory(tmp_path / "run").storage_url)
    for record in _trials(tmp_path):
        held = study.trials[record.number]
        if record.final is None or record.objective is None:
            continue
        assert held.user_attrs["final_of"] == record.final.of
        soaked = record.final.stage is FinalStage.SOAK
        assert held.state is (TrialState.FAIL if soaked else TrialState.COMPLETE)
        assert held.value == (None if soaked else record.objective.value)
        assert held.params == study.trials[record.final.of].params


@pytest.mark.parametrize("launch", [5, 7, 99])
def test_a_study_stopped_in_its_finals_goes_on_there_and_repeats_nothing(tmp_path: Path, launch: int) -> None:
    whole, engine = _run(tmp_path / "whole", _ttft_by_seqs)
    launch = min(launch, len(engine.launched))

    def stopping(candidate: Candidate, launches: int) -> float | BaseException:
        return KeyboardInterrupt() if launches == launch else _ttft_by_seqs(candidate, launches)

    with pytest.raises(KeyboardInterrupt):
        _run(tmp_path, stopping)
    assert len(_launched(tmp_path)) == launch - 1
    resumed, again = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert len(again.launched) == len(engine.launched) - launch + 1
    assert [r.final for r in _trials(tmp_path)] == [r.final for r in _trials(tmp_path / "whole")]
    assert (resumed.best, resumed.gain) == (whole.best, whole.gain)
    nothing, idle = _run(tmp_path, _ttft_by_seqs, resume=True)
    assert idle.launched == []
    assert nothing.finals == resumed.finals


def test_a_larger_budget_searches_on_and_runs_its_finals_anew(tmp_path: Path) -> None:
    _run(tmp_path, _ttft_by_seqs)
    before = len(_trials(tmp_path))
    summary, engine = _run(tmp_path, _ttft_by_seqs, replace(SPEC, budget=BudgetSpec(trials=5)), resume=True)
    assert summary.launched == 5
    assert len(engine.launched) > 1
    later = _trials(tmp_path)[before:]
    assert {r.final.after for r in later if r.final} == {max(r.number for r in later if r.final is None)}


def test_a_winner_that_crashes_in_the_finals_gives_way(tmp_path: Path) -> None:
    def crashing(candidate: Candidate, launches: int) -> Any:
        if candidate.role is Role.FINAL and candidate.args == first:
            return failure(Outcome.OOM_STARTUP)
        return _ttft_by_seqs(candidate, launches)

    first: Any = None
    plain, _ = _run(tmp_path / "plain", _ttft_by_seqs)
    first = next(r.args for r in _trials(tmp_path / "plain") if r.number == plain.best)
    summary, _ = _run(tmp_path, crashing)
    assert summary.best is not None
    assert summary.best != plain.best
    assert any(f"trial {plain.best} was left out" in warning for warning in summary.warnings)


def test_finals_that_the_hours_leave_no_time_for_are_said_to_be_missing(tmp_path: Path) -> None:
    spec = replace(SPEC, budget=BudgetSpec(trials=4, hours=1e-7))
    summary, engine = _run(tmp_path, _ttft_by_seqs, spec)
    assert all(candidate.role is not Role.FINAL for candidate in engine.launched)
    assert summary.finals is None
