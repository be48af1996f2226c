"""A study whose space chooses among the model and variants: prepared once, learned once, told apart in every file."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.check import check_study, lines
from autotune.deploy.command import export_run
from autotune.deploy.deployment import Asked
from autotune.engines.base import engine_for
from autotune.errors import EnvironmentFault, InputError
from autotune.pipeline import prepare_variants, run_study
from autotune.records.spec import (
    BudgetSpec,
    Choice,
    EngineKind,
    IntRange,
    ParameterSpec,
    SamplerSpec,
    SpaceSpec,
    StudySpec,
)
from autotune.records.trial import Candidate, Outcome, Phase, Role, TrialRecord
from autotune.records.variants import VariantSpec
from autotune.report.verdict import details
from autotune.report.view import read_view
from autotune.search.checkpoints import checkpoints_of
from autotune.trial.store import RunDirectory
from tests.variants.conftest import Kitchen

pytestmark = pytest.mark.integration

CHOSEN = "preparation of its checkpoint"


class Silent:
    """Follows `pipeline.View`, and keeps what it was told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def phase(self, number: int, candidate: Candidate, text: str) -> None:
        self.told.append(text)

    def finished(self, record: TrialRecord) -> None:
        pass

    def message(self, text: str) -> None:
        self.told.append(text)


def study(kitchen: Kitchen, variants: Sequence[VariantSpec], trials: int = 6) -> StudySpec:
    """Each checkpoint with two batch sizes, all of them tried in turn."""
    names = ("base", *(variant.name for variant in variants))
    space = SpaceSpec(
        name="v",
        engine=EngineKind.VLLM,
        parameters=(
            ParameterSpec(name="checkpoint", domain=Choice(values=names), changes_output=True),
            ParameterSpec(name="max_num_seqs", domain=IntRange(low=32, high=64, step=32)),
        ),
    )
    return kitchen.spec(
        *variants,
        search_space=space,
        quality="unchecked",
        sampler=SamplerSpec(kind="grid"),
        budget=BudgetSpec(trials=trials),
    )


def only_variants(spec: StudySpec) -> StudySpec:
    """The study without the model itself among its choices."""
    checkpoint, batch = spec.search_space.parameters
    names = tuple(variant.name for variant in spec.variants)
    parameters = (replace(checkpoint, domain=Choice(values=names)), batch)
    return replace(spec, search_space=replace(spec.search_space, parameters=parameters))


def run(spec: StudySpec, folder: Path, *, resume: bool = False) -> tuple[RunDirectory, Silent]:
    directory, view = RunDirectory(folder / "run"), Silent()
    run_study(spec, engine_for(spec), directory, view, resume=resume)
    return directory, view


def by_checkpoint(directory: RunDirectory, name: str) -> list[TrialRecord]:
    return [trial for trial in directory.trials() if trial.checkpoint is not None and trial.checkpoint.name == name]


def test_good_ones_run_and_a_bad_one_is_learned_once(kitchen: Kitchen, tmp_path: Path) -> None:
    spec = study(kitchen, (kitchen.variant(), kitchen.variant(name="bad", how="fails")))
    directory, view = run(spec, tmp_path)
    good, bad = by_checkpoint(directory, "w8"), by_checkpoint(directory, "bad")
    assert [len(good), len(bad), kitchen.count()] == [2, 2, 2]

    assert all(trial.outcome.measured for trial in good)
    path = Path(str(good[0].checkpoint and good[0].checkpoint.path))
    assert [trial.model for trial in good] == [str(path)] * 2
    assert (path / "config.json").is_file()
    assert [trial.waited_s > 0 for trial in good] == [True, False]
    assert [trial.startup_kind for trial in good] == ["cold", "warm"]

    assert {trial.outcome for trial in bad} == {Outcome.RULED_OUT}
    assert {trial.ruled_out_by for trial in bad} == {CHOSEN}
    for trial in bad:
        assert trial.failure is not None
        assert (trial.failure.phase, trial.failure.outcome) == (Phase.PREPARE, Outcome.LAUNCH_FAILED)
        assert "ValueError: group size 128 does not divide 100" in trial.failure.cause
    assert [trial.waited_s > 0 for trial in bad] == [True, False]

    others = [trial for trial in directory.trials() if trial.checkpoint is None]
    assert {trial.model for trial in others} == {spec.model}
    assert others[0].role is Role.REFERENCE

    summary = directory.summary()
    assert summary.ruled_out_by == {CHOSEN: 2}
    assert summary.launched == 5
    assert summary.prepare_s == pytest.approx(good[0].waited_s + bad[0].waited_s)
    assert "loading" in directory.variant_log("bad").read_text()
    assert any(text.startswith("preparing w8") for text in view.told)
    assert any(line.startswith("Preparing checkpoints took ") for line in details(read_view(directory)))


def test_best_names_the_prepared_checkpoint_and_how_to_make_it_again(kitchen: Kitchen, tmp_path: Path) -> None:
    spec = only_variants(study(kitchen, (kitchen.variant(),)))  # which is fp8, and thus beats the reference
    directory, _ = run(spec, tmp_path)
    (path,) = {trial.checkpoint.path for trial in directory.trials() if trial.checkpoint is not None}
    evidence = json.loads((directory.best / "best.json").read_text())
    assert evidence["model"] == path
    assert evidence["checkpoint"]["name"] == "w8"
    assert evidence["checkpoint"]["path"] == path
    assert evidence["checkpoint"]["command"][-3:-1] == [spec.model, path]
    assert "checkpoint" not in evidence["engine"]["args"]
    assert f" {path} " in (directory.best / "serve.sh").read_text()
    out: list[str] = []
    export_run(directory, "docker", None, Asked(), out.append)
    assert str(path) in "".join(out)


def test_what_failed_is_not_tried_again_after_a_resume(kitchen: Kitchen, tmp_path: Path) -> None:
    spec = only_variants(study(kitchen, (kitchen.variant(name="bad", how="fails"),), trials=2))
    directory, _ = run(spec, tmp_path)
    (first, *_) = by_checkpoint(directory, "bad")
    again = checkpoints_of(spec, directory, (), directory.trials()).prepare("bad", lambda _: None)
    assert again.failure == first.failure
    assert again.checkpoint.waited_s == 0.0
    assert kitchen.count() == 1


def test_a_disk_too_small_ends_the_study_before_its_first_launch_and_a_larger_one_goes_on(
    kitchen: Kitchen, tmp_path: Path
) -> None:
    spec = study(kitchen, (kitchen.variant(needs_disk_gib=1e6),), trials=3)
    with pytest.raises(EnvironmentFault, match="variant w8 needs"):
        run(spec, tmp_path)
    assert RunDirectory(tmp_path / "run").trials() == []


def test_a_disk_that_fills_up_loses_no_finished_trial(kitchen: Kitchen, tmp_path: Path) -> None:
    spec = study(kitchen, (kitchen.variant(how="disk-full"),))
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        run(spec, tmp_path)
    directory = RunDirectory(tmp_path / "run")
    finished = directory.trials()
    assert finished
    assert "No space left" in directory.summary().stop_reason
    with pytest.raises(EnvironmentFault, match="No space left on device"):
        run(spec, tmp_path, resume=True)
    assert directory.trials()[: len(finished)] == finished
    assert kitchen.count() == 2


def test_limits_may_change_between_runs_and_recipes_may_not(kitchen: Kitchen, tmp_path: Path) -> None:
    variant = kitchen.variant(name="bad", how="fails")
    spec = only_variants(study(kitchen, (variant,), trials=1))
    run(spec, tmp_path)
    other = replace(variant, timeout_s=1.0, needs_disk_gib=0.001, resumes=True)
    run(replace(spec, variants=(other,), variants_dir=str(tmp_path / "other")), tmp_path, resume=True)
    with pytest.raises(InputError, match="the study changed since it was started: variants"):
        run(replace(spec, variants=(replace(variant, versions={"tool": "2"}),)), tmp_path, resume=True)


def test_inputs_that_changed_make_earlier_trials_another_study(kitchen: Kitchen, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("bits: 8")
    spec = only_variants(study(kitchen, (kitchen.variant(inputs=(str(recipe),)),), trials=2))
    run(spec, tmp_path)
    recipe.write_text("bits: 4")
    with pytest.raises(InputError, match="variant w8 is not what earlier trials ran"):
        run(replace(spec, budget=BudgetSpec(trials=6)), tmp_path, resume=True)


def test_check_lists_what_is_made_and_prepare_makes_it(kitchen: Kitchen) -> None:
    spec = study(kitchen, (kitchen.variant(needs_disk_gib=0.25), VariantSpec(name="awq", model="org/awq")))

    def said() -> str:
        report = check_study(spec, engine_for(spec), sampled=5)
        return "\n".join(lines(report, spec.objective.load))

    before = said()
    assert "w8: to be made in " in before
    assert "0.25 GiB of disk" in before
    assert "awq: org/awq" in before
    told: list[str] = []
    made, named = prepare_variants(spec, told.append)
    assert made.startswith("variant w8: ")
    assert named == "variant awq: org/awq"
    assert told
    assert "w8: ready in " in said()
    assert next(prepare_variants(spec, told.append)).endswith(" s before")
    assert kitchen.count() == 1


def test_prepare_makes_the_others_before_it_says_what_failed(kitchen: Kitchen) -> None:
    spec = study(kitchen, (kitchen.variant(name="bad", how="fails"), kitchen.variant()))
    done: list[str] = []
    with pytest.raises(EnvironmentFault, match="variant bad could not be made"):
        done.extend(prepare_variants(spec, lambda _: None))
    assert kitchen.count() == 2
