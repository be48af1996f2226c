"""On a real vLLM with a model that has learned something: an equal launch passes, a damaged checkpoint does not."""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.engines.vllm.engine import VllmEngine
from autotune.records.quality import AskedBy, Quality, QualitySpec, QualityStatus
from autotune.records.spec import Choice, EngineKind, EngineSpec, ParameterSpec, SpaceSpec, StudySpec
from autotune.records.trial import Candidate, Failure, Outcome, Role
from autotune.trial.quality import QualityCheck
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec
from tests.vllm.conftest import ROOT, vllm_venv

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

__all__ = ["vllm_venv"]

STEPS = 150  # half a minute on two cores, a perplexity of about 5
PROMPTS, ANSWER_TOKENS = 12, 16
ARGS = {"max_num_seqs": 8, "max_model_len": 512, "enforce_eager": True, "dtype": "bfloat16", "block_size": 32}
ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
LOADERS = ("auto", "safetensors")  # two names for the same here, so that a launch with the other must say the same


@pytest.fixture(scope="session")
def small_model(vllm_venv: Path) -> Path:
    """Trained once, and kept beside vLLM until its script changes."""
    script = ROOT / "scripts/train_small_model.py"
    version = hashlib.sha256(script.read_bytes()).hexdigest()[:8]
    model = vllm_venv / f"small-model-{version}-{STEPS}"
    if not (model / "prompts.txt").exists():
        subprocess.run([vllm_venv / "bin/python", script, model, "--steps", str(STEPS)], check=True)
    return model


@pytest.fixture(scope="session")
def damaged_model(vllm_venv: Path, small_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    damaged = tmp_path_factory.mktemp("damaged") / "model"
    script = ROOT / "scripts/train_small_model.py"
    subprocess.run([vllm_venv / "bin/python", script, damaged, "--damage", small_model], check=True)
    return damaged


def study(venv: Path, model: Path, prompts: Path) -> StudySpec:
    return study_spec(
        model=str(model),
        engine=EngineSpec(kind=EngineKind.VLLM, command=(str(venv / "bin/vllm"),), env=ENV, startup_timeout_s=240),
        objective=objective(quality=QualitySpec(prompts=str(prompts), answer_tokens=ANSWER_TOKENS)),
        search_space=SpaceSpec(
            name="loaders",
            engine=EngineKind.VLLM,
            parameters=(ParameterSpec(name="load_format", domain=Choice(values=LOADERS), changes_output=True),),
        ),
    )


def test_an_equal_launch_passes_and_a_damaged_checkpoint_does_not(
    vllm_venv: Path, small_model: Path, damaged_model: Path, tmp_path: Path
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("\n".join((small_model / "prompts.txt").read_text().splitlines()[:PROMPTS]))
    run = RunDirectory(path=tmp_path / "run")

    def checked(number: int, model: Path, loader: str) -> tuple[Failure | None, Quality]:
        spec = study(vllm_venv, model, prompts)
        role = Role.SEARCH if number else Role.REFERENCE
        candidate = Candidate(params={}, args={**ARGS, "load_format": loader}, role=role, fingerprint=str(number))
        folder, silent = run.make_trial_directory(number), _silent()
        with VllmEngine(spec).launch(candidate, trial_dir=folder, gpus=(), on_phase=silent) as server:
            check = QualityCheck(spec=spec, run=run, candidate=candidate, number=number, server=server)
            failure = check(silent)
        assert check.found is not None
        return failure, check.found

    failure, reference = checked(0, small_model, LOADERS[0])
    assert (failure, reference.status, reference.asked_by) == (None, QualityStatus.REFERENCE, AskedBy.PROMPT_LOGPROBS)
    assert reference.prompts == PROMPTS

    failure, equal = checked(1, small_model, LOADERS[1])
    assert (failure, equal.status, equal.changed) == (None, QualityStatus.PASSED, ("load_format",))

    failure, damaged = checked(2, damaged_model, LOADERS[1])
    assert failure is not None
    assert (failure.outcome, damaged.status) == (Outcome.WRONG_OUTPUT, QualityStatus.FAILED)
    assert (damaged.mean_logprob_difference or 0) < -0.02
    assert failure.cause.startswith("perplexity_ratio ")


def _silent() -> Callable[[str], None]:
    return lambda _: None
