"""Every sampler that a study file may name runs a study, reproducibly, and can take over another's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import InputError
from autotune.pipeline import run_study
from autotune.records.spec import BudgetSpec, FloatRange, ParameterSpec, SamplerSpec
from autotune.records.trial import Candidate, Failure, Outcome
from autotune.search.samplers import make_sampler
from autotune.space import build_space
from autotune.trial.store import RunDirectory
from tests.builders import space_spec, study_spec
from tests.fakes import ListView, ScriptedEngine, failure

KINDS = ["auto", "tpe", "random", "qmc", "nsga2", "grid"]


def _script(candidate: Candidate, _: int) -> Failure | float:
    seqs = candidate.args.get("max_num_seqs", 256)
    return failure(Outcome.OOM_STARTUP) if seqs > 200 else 50.0 + seqs / 10


def _launched(path: Path, kind: str, trials: int = 7) -> list[Candidate]:
    engine = ScriptedEngine(_script)
    spec = study_spec(sampler=SamplerSpec(kind=kind), budget=BudgetSpec(trials=trials))
    run_study(spec, engine, RunDirectory(path), ListView())
    return engine.launched


@pytest.mark.parametrize("kind", KINDS)
def test_every_sampler_runs_a_study_with_crashes_in_it_reproducibly(tmp_path: Path, kind: str) -> None:
    first = _launched(tmp_path / "a", kind)
    assert len(first) == (6 if kind == "grid" else 7)  # a grid of 3 x 2 of which a rule refuses one, and the reference
    assert first == _launched(tmp_path / "b", kind)


def test_gp_says_what_it_needs() -> None:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401
    except ImportError:
        with pytest.raises(InputError, match="torch"):
            make_sampler(SamplerSpec(kind="gp"), seed=1, trials=10, distributions={})
    else:
        pytest.skip("torch is installed here")


def test_a_grid_has_every_choice_and_both_ends_of_every_range() -> None:
    import optuna

    distributions = build_space(study_spec(), gpus=1).distributions()
    grid = make_sampler(SamplerSpec(kind="grid"), seed=1, trials=12, distributions=distributions).sampler
    assert isinstance(grid, optuna.samplers.GridSampler)
    points = grid._search_space
    assert points["max_num_batched_tokens"] == [64, 512, 2048]
    assert points["max_num_seqs"][0] == 8
    assert points["max_num_seqs"][-1] == 256


@pytest.mark.parametrize("kind", ["random", "nsga2"])
def test_another_sampler_goes_on_with_a_study(tmp_path: Path, kind: str) -> None:
    spec = study_spec(budget=BudgetSpec(trials=4))
    run = RunDirectory(tmp_path / "run")
    run_study(spec, ScriptedEngine(_script), run, ListView())
    other = replace(spec, sampler=SamplerSpec(kind=kind), budget=BudgetSpec(trials=7))
    engine = ScriptedEngine(_script)
    run_study(other, engine, run, ListView(), resume=True)
    assert len(engine.launched) == 3


def test_any_optuna_sampler_is_named_by_its_path_with_its_arguments(tmp_path: Path) -> None:
    kind = "optuna.samplers:TPESampler"
    made = make_sampler(SamplerSpec(kind=kind, kwargs={"n_startup_trials": 3}), seed=1, trials=10, distributions={})
    assert made.complete_only, "of a sampler that we don't know crashes are told in the way that all of them see"
    assert len(_launched(tmp_path, kind, trials=5)) == 5


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (SamplerSpec(kind="no.such.module:Sampler"), "No module named 'no'"),
        (SamplerSpec(kind="optuna.samplers:NoSampler"), "NoSampler is not an Optuna sampler"),
        (SamplerSpec(kind="pathlib:Path"), "Path is not an Optuna sampler of pathlib"),
        (SamplerSpec(kind="optuna.samplers:TPESampler", kwargs={"sead": 1}), "refuses its arguments.*sead"),
    ],
)
def test_a_path_that_leads_to_no_sampler_is_bad_input(spec: SamplerSpec, why: str) -> None:
    with pytest.raises(InputError, match=why):
        make_sampler(spec, seed=1, trials=10, distributions={})


def test_a_study_on_a_plateau_ends_before_its_budget_and_says_why(tmp_path: Path) -> None:
    engine = ScriptedEngine(lambda *_: 50.0)
    spec = study_spec(budget=BudgetSpec(trials=25))
    summary = run_study(spec, engine, RunDirectory(tmp_path / "run"), ListView())
    assert "settled: another launch would likely gain" in summary.stop_reason
    assert len(engine.launched) < 25


def test_a_finished_run_with_stepped_floats_is_not_rebuilt(tmp_path: Path) -> None:
    """0.8 + 0.01 * 6 is not 0.86: a storage made anew would lose when its trials ran."""
    import optuna

    share = ParameterSpec(name="gpu_memory_utilization", domain=FloatRange(low=0.8, high=0.95, step=0.01))
    spec = study_spec(search_space=replace(space_spec(), parameters=(*space_spec().parameters, share)))
    run = RunDirectory(tmp_path / "run")
    run_study(spec, ScriptedEngine(_script), run, ListView())
    before = optuna.load_study(study_name="test", storage=run.storage_url).trials
    run_study(spec, ScriptedEngine(_script), run, ListView(), resume=True)
    after = optuna.load_study(study_name="test", storage=run.storage_url).trials
    assert [trial.datetime_complete for trial in after] == [trial.datetime_complete for trial in before]
