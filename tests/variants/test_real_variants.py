"""On a real vLLM: a checkpoint quantised to int8 by a script on the CPU runs beside quantisation at launch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.errors import ExitCode
from autotune.records.trial import TrialRecord
from autotune.trial.store import RunDirectory
from tests.vllm.conftest import ROOT, vllm_venv
from tests.vllm.test_study import OBJECTIVE

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]
__all__ = ["vllm_venv"]

LOADED = "CompressedTensorsW8A8Int8"
"""In vLLM's log: the scheme that it chose for the weights."""


def study_file(folder: Path) -> Path:
    """The shipped study with a launch of each kind and a short load."""
    study = yaml.safe_load((ROOT / "studies/vllm-cpu-variants.yaml").read_text())
    parameters = study["search_space"]["parameters"]
    parameters["max_num_seqs"] = {"choice": [8]}
    parameters["quantization"]["choice"].remove("None")  # that is the reference
    study |= {"objective": OBJECTIVE, "budget": {"trials": 3}, "sampler": "grid", "variants_dir": str(folder / "cache")}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def test_a_quantised_checkpoint_and_quantisation_at_launch_are_one_study(vllm_venv: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", "study", str(study_file(tmp_path)), "--runs", str(tmp_path / "runs")],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    run = RunDirectory(tmp_path / "runs" / "vllm-cpu-variants")
    trials = run.trials()
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_FEASIBLE), done.stderr
    assert all(trial.outcome.measured for trial in trials), [trial.failure for trial in trials]
    (prepared,) = [trial for trial in trials if trial.checkpoint is not None]
    (at_launch,) = [trial for trial in trials if trial.args.get("quantization") == "fp8_per_channel"]
    assert at_launch.checkpoint is None
    assert "quantization" not in prepared.args
    assert prepared.waited_s > 0
    path = Path(prepared.model)
    assert json.loads((path / "config.json").read_text())["quantization_config"]["format"] == "int-quantized"
    assert weights(path) < 0.7 * weights(ROOT / ".venv-vllm/tiny-model")
    assert str(path) in prepared.argv
    assert LOADED in log_of(run, prepared)
    assert LOADED not in log_of(run, at_launch)


def weights(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.glob("*.safetensors"))


def log_of(run: RunDirectory, trial: TrialRecord) -> str:
    return (run.trial_directory(trial.number) / "engine.log").read_text()
