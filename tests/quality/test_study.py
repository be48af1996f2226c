"""The whole chain on the stand-in: wrong answers end a trial before its load, slightly other ones pass, all is told."""

from __future__ import annotations

import json
import random
import shutil
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from autotune.engines.base import engine_for
from autotune.errors import EnvironmentFault, StudyFileError
from autotune.pipeline import read_study, run_study
from autotune.records.quality import Quality, QualityStatus
from autotune.records.trial import Candidate, Outcome, Phase, Role, TrialRecord
from autotune.report.show import show
from autotune.trial.quality import changed_names
from autotune.trial.store import RunDirectory
from tests.fakes import ListView
from tests.quality.making import Model, reference

pytestmark = pytest.mark.integration

FAULTS = ["wrong_output:quantization=fp8", "perturbed_output:kv_cache_dtype=fp8"]
STUDY: dict[str, Any] = {
    "name": "small",
    "model": "meta-llama/Llama-3.1-8B-Instruct",
    "engine": {
        "kind": "simulated",
        "simulate": {"face": "server", "time_scale": 100, "faults": FAULTS},
        "args": {"max_model_len": 512},
        "startup_timeout_s": 60,
    },
    "incumbent": {"kv_cache_dtype": "auto", "quantization": "None"},
    "search_space": {
        "engine": "vllm",
        "parameters": {
            "kv_cache_dtype": {"choice": ["auto", "fp8"], "changes_output": True},
            "quantization": {"choice": ["None", "fp8"], "changes_output": True},
        },
    },
    "objective": {
        "name": "small",
        "maximize": "output_tok_per_s",
        "slos": {"error_ratio": 0.9},
        "workload": {"input_tokens": 16, "output_tokens": 4},
        "load": {"concurrency": 2, "duration_s": 0.3, "warmup_s": 0.1},
        "quality": {},
    },
    "sampler": {"kind": "grid"},
    "finals": False,
}


def study_file(folder: Path, *, trials: int, **objective: Any) -> Path:
    path = folder / "study.yaml"
    asked = {"objective": STUDY["objective"] | objective, "budget": {"trials": trials}}
    path.write_text(yaml.safe_dump(STUDY | asked, sort_keys=False))
    return path


def run(path: Path, *, resume: bool = False) -> tuple[RunDirectory, ListView]:
    spec, view = read_study(path), ListView()
    directory = RunDirectory(path=path.parent / "run")
    run_study(spec, engine_for(spec), directory, view, resume=resume)
    return directory, view


def quality_of(trial: TrialRecord) -> Quality:
    assert trial.quality is not None
    return trial.quality


Ran = tuple[RunDirectory, ListView]


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """A run that was stopped after its reference."""
    return run(study_file(tmp_path_factory.mktemp("begun"), trials=1))


@pytest.fixture(scope="module")
def finished(begun: Ran, tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """The same, gone on with."""
    return run(study_file(copied(begun, tmp_path_factory.mktemp("finished")), trials=4), resume=True)


def copied(ran: Ran, folder: Path) -> Path:
    shutil.copytree(ran[0].path, folder / "run")
    return folder


def by_args(directory: RunDirectory) -> dict[tuple[str, str], TrialRecord]:
    return {
        (str(trial.args.get("kv_cache_dtype", "auto")), str(trial.args.get("quantization", "None"))): trial
        for trial in directory.trials()[1:]
    }


def test_the_reference_is_asked_and_its_answers_are_kept(begun: Ran) -> None:
    directory, view = begun
    first = directory.trials()[0]
    kept = directory.reference_answers("simulated")
    assert kept is not None
    assert (kept.trial, len(kept.repeats), len(kept.base)) == (0, 3, len(kept.prompts))
    assert kept.settings["kv_cache_dtype"] == "auto"
    assert quality_of(first).status is QualityStatus.REFERENCE
    phases = [line.removeprefix("0 ") for line in view.lines]
    assert phases.index("canary") < phases.index("asking the reference for its answers") < phases.index("warming up")


def test_wrong_answers_end_a_trial_before_its_load(finished: Ran) -> None:
    directory, view = finished
    wrong = [trial for trial in directory.trials() if trial.args.get("quantization") == "fp8"]
    assert wrong
    for trial in wrong:
        assert (trial.outcome, trial.measurements) == (Outcome.WRONG_OUTPUT, ())
        assert trial.failure is not None
        assert trial.failure.phase is Phase.QUALITY
        assert trial.failure.cause == quality_of(trial).why
        assert trial.failure.cause.startswith("perplexity_ratio 7.3")
        assert "\n" not in trial.failure.cause
        assert f"{trial.number} warming up" not in view.lines


def test_slightly_different_answers_pass_with_their_figures(finished: Ran) -> None:
    trial = by_args(finished[0])["fp8", "None"]
    found = quality_of(trial)
    assert (trial.outcome.measured, found.status, found.changed) == (True, QualityStatus.PASSED, ("kv_cache_dtype",))
    assert found.mean_logprob_difference == pytest.approx(-0.002, abs=0.001)
    assert 0.5 < (found.equal_ratio or 0) < 1


@pytest.mark.parametrize(
    ("args", "changed"),
    [
        ({"kv_cache_dtype": "auto", "max_num_seqs": 8}, ()),
        ({"kv_cache_dtype": "fp8"}, ("kv_cache_dtype",)),
        ({}, ("kv_cache_dtype",)),  # the reference was given a value, which may not be the engine's default
        ({"kv_cache_dtype": "auto", "speculative": {"tokens": 3}}, ("speculative.tokens",)),
    ],
)
def test_only_what_differs_from_the_reference_is_checked(args: dict[str, Any], changed: tuple[str, ...]) -> None:
    kept = replace(reference(Model(), random.Random(1)), settings={"kv_cache_dtype": "auto"})
    candidate = Candidate(params={}, args=args, role=Role.SEARCH, fingerprint="f")
    assert changed_names(candidate, ("kv_cache_dtype", "speculative.tokens"), kept) == changed


def test_another_checkpoint_is_always_checked() -> None:
    kept = replace(reference(Model(), random.Random(1)), settings={"checkpoint": "base"})

    def changed(checkpoint: str | None) -> tuple[str, ...]:
        candidate = Candidate(params={}, args={}, role=Role.SEARCH, fingerprint="f", checkpoint=checkpoint)
        return changed_names(candidate, ("checkpoint",), kept)

    assert (changed(None), changed("base"), changed("int8")) == ((), (), ("checkpoint",))


def test_a_run_tells_what_was_checked(finished: Ran) -> None:
    directory = finished[0]
    text = StringIO()
    show(directory, Console(width=200, file=text))
    for said in ("wrong text", "The reference against itself: perplexity ±", "Answers checked of ", " wrong: trial"):
        assert said in text.getvalue()
    summary = directory.summary()
    best = next(trial for trial in directory.trials() if trial.number == summary.best)
    told = None if best.quality is None else best.quality.status
    assert summary.quality == ("passed" if told is QualityStatus.PASSED else "not_applicable")
    assert json.loads((directory.best / "best.json").read_text())["quality"] == summary.quality


def test_a_resumed_run_holds_candidates_against_the_answers_it_kept(begun: Ran, finished: Ran) -> None:
    assert not [line for line in finished[1].lines if "asking the reference" in line]
    assert finished[0].reference_answers("simulated") == begun[0].reference_answers("simulated")


def test_answers_that_were_deleted_stop_a_resumed_run_with_the_remedy(begun: Ran, tmp_path: Path) -> None:
    path = study_file(copied(begun, tmp_path), trials=4)
    (tmp_path / "run" / "quality" / "simulated.json").unlink()
    with pytest.raises(EnvironmentFault, match="the answers of the reference are not in"):
        run(path, resume=True)


def test_what_keeps_answers_from_being_checked_is_said_before_the_first_launch(tmp_path: Path) -> None:
    path = study_file(tmp_path, trials=4, quality={"prompts": "mine.txt"})
    path.write_text(path.read_text().replace("face: server", "face: virtual").replace("faults:", "x_faults:"))
    text = path.read_text()
    start = text.index("    x_faults:")
    path.write_text(text[:start] + text[text.index("  args:", start) :])
    with pytest.raises(StudyFileError) as error:
        read_study(path)
    assert "a simulation in virtual time says nothing that could be checked" in str(error.value)
    assert "mine.txt: the prompts can't be read: No such file or directory" in str(error.value)
