"""A whole study whose trials run in containers, by the command line as a user would."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.errors import ExitCode
from autotune.records.trial import Outcome
from autotune.trial.store import RunDirectory
from tests.containers.runtimes import ROOT, Lab
from tests.engines.children import wait_until

SECRET = "tok-5d1e6c02aa"
TRIALS = 3


def study_file(lab: Lab, folder: Path) -> Path:
    """The simulated server in a container, three trials of a few seconds of load."""
    study = {
        "name": lab.study,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "engine": {
            "kind": "simulated",
            "command": [sys.executable, "-m", "autotune.engines.simulated"],
            "env": {"ENGINE_TOKEN": "${MY_TOKEN}"},
            "simulate": {"face": "server", "time_scale": 20},
            "startup_timeout_s": 60,
            "container": {
                "runtime": lab.container.runtime,
                "image": lab.container.image,
                "mounts": list(lab.container.mounts),
                "options": list(lab.container.options),
            },
        },
        "search_space": {
            "engine": "vllm",
            "parameters": {"max_num_seqs": {"choice": [4, 16, 64]}},
        },
        "objective": {
            "name": "quick",
            "maximize": "output_tok_per_s",
            "slos": {"ttft_ms.p75": 10_000, "error_ratio": 0.2},
            "workload": {"input_tokens": 64, "output_tokens": 16},
            "load": {"concurrency": 4, "duration_s": 2, "warmup_s": 0.5},
            "confidence": 0.9,
        },
        "budget": {"trials": TRIALS},
        "finals": False,
    }
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


def tuner(file: Path, runs: Path) -> list[str]:
    return [sys.executable, "-m", "autotune.cli", "study", str(file), "--runs", str(runs)]


@pytest.mark.podman
def test_a_study_in_containers_ends_with_a_script_that_runs_one_and_leaves_none(
    podman: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)
    file, runs = study_file(podman, tmp_path), tmp_path / "runs"
    done = subprocess.run(tuner(file, runs), cwd=ROOT, capture_output=True, text=True, check=False)
    run = RunDirectory(runs / podman.study)
    trials = [trial for trial in run.trials() if trial.outcome is not Outcome.RULED_OUT]
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_FEASIBLE), done.stderr
    assert len(trials) == TRIALS
    for trial in trials:
        assert trial.outcome.measured, trial.failure
        assert trial.simulated
        assert trial.cleanup is not None
        assert (trial.cleanup.left_processes, trial.cleanup.port_free) == (0, True)
        assert len(trial.cleanup.container or "") == 64
        assert "@sha256:" in (trial.versions["container_image"] or "")
    assert len({trial.cleanup.container for trial in trials if trial.cleanup}) == TRIALS
    assert podman.ids() == ()
    evidence = json.loads((run.best / "best.json").read_text())
    script = (run.best / "serve.sh").read_text()
    assert f"exec {podman.container.runtime} run --rm" in script
    assert evidence["versions"]["container_image"] in script
    written = [path.read_bytes() for path in run.path.rglob("*") if path.is_file()]
    assert not any(SECRET.encode() in text for text in [*written, done.stdout.encode(), done.stderr.encode()])


@pytest.mark.podman
def test_a_killed_study_in_containers_leaves_none_and_resumes_without_losing_or_repeating_a_trial(
    podman: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL under load in the second trial: the keeper, not the tuner, removes the container."""
    monkeypatch.setenv("MY_TOKEN", SECRET)
    file, runs = study_file(podman, tmp_path), tmp_path / "runs"
    run, said = RunDirectory(runs / podman.study), tmp_path / "stderr"
    first = run.trial_directory(0) / "trial.json"
    with (
        said.open("w") as stderr,
        subprocess.Popen(tuner(file, runs), cwd=ROOT, stdout=subprocess.DEVNULL, stderr=stderr) as killed,
    ):
        wait_until(
            lambda: (
                killed.poll() is not None or ("trial 1" in (text := said.read_text()) and text.endswith("measuring\n"))
            ),
            "the load of the second trial",
            deadline_s=60,
        )
        running = podman.ids()
        killed.kill()
    assert killed.returncode == -signal.SIGKILL, said.read_text()
    assert len(running) == 1
    wait_until(lambda: not podman.ids(), "the removal of the container", deadline_s=30)
    finished = first.read_bytes()
    done = subprocess.run([*tuner(file, runs), "--resume"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_FEASIBLE), done.stderr
    assert first.read_bytes() == finished
    trials = [trial for trial in run.trials() if trial.outcome is not Outcome.RULED_OUT]
    assert [trial.outcome.measured for trial in trials] == [True] * TRIALS
    assert len({trial.fingerprint for trial in trials}) == TRIALS
    assert podman.ids() == ()
