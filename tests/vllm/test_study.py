"""The promise, on a real vLLM: a study ends with a file, and the file deploys exactly what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.net import fresh_port, get
from autotune.engines.process import engine_process
from autotune.engines.vllm.logs import LEFTOVERS, resolved_settings
from autotune.errors import ExitCode
from autotune.records.trial import Outcome
from autotune.trial.store import RunDirectory
from tests.engines.children import wait_until
from tests.vllm.conftest import ROOT

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(600)]

TRIALS = 2
OBJECTIVE = {
    "name": "quick",
    "maximize": "output_tok_per_s",
    # Loose limits at shares that some twenty requests settle: whether the engine is fast is not asked here.
    "slos": {"ttft_ms.p75": 10_000, "tpot_ms.p75": 1_000, "error_ratio": 0.2},
    "workload": {"input_tokens": {"uniform": [32, 64]}, "output_tokens": {"uniform": [8, 16]}},
    "load": {"concurrency": 4, "duration_s": 8, "warmup_s": 1},
    "confidence": 0.9,
}


INCUMBENT = """\
max-num-seqs: 2
max-num-batched-tokens: 512
max-model-len: 256
block-size: 32
no-enable-chunked-prefill: true
"""
"""Far from vLLM's defaults, so that whichever trial wins, the file says more than they do."""


def study_file(folder: Path) -> Path:
    """studies/vllm-cpu.yaml with two trials, a short load, and a setting that is false where vLLM's default is true."""
    study = yaml.safe_load((ROOT / "studies/vllm-cpu.yaml").read_text())
    space = yaml.safe_load((ROOT / "search_spaces/vllm/cpu.yaml").read_text())
    del space["parameters"]["enable_prefix_caching"]
    study["engine"]["args"]["enable_prefix_caching"] = False
    (folder / "production.yaml").write_text(INCUMBENT)
    study |= {"search_space": space, "objective": OBJECTIVE, "incumbent": "production.yaml"}
    study |= {"budget": {"trials": TRIALS}, "finals": False}
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(study, sort_keys=False))
    return path


@contextmanager
def deployed(venv: Path, best: Path, folder: Path) -> Iterator[tuple[int, Path]]:
    """`vllm serve --config best/vllm.yaml`, as a user would: its port and its log, once it is healthy."""
    port, log = fresh_port(), folder / "deployed.log"
    log.touch()
    argv = [str(venv / "bin/vllm"), "serve", "--config", str(best / "vllm.yaml")]
    engine_env = yaml.safe_load((ROOT / "studies/vllm-cpu.yaml").read_text())["engine"]["env"]
    with engine_process(
        [*argv, "--host", "127.0.0.1", "--port", str(port)],
        env={**os.environ, **engine_env},
        log=log,
        port=port,
        cwd=folder,  # the file must not depend on where the study ran
        leftovers=LEFTOVERS,
    ) as process:

        def healthy() -> bool:
            assert process.exit_code() is None, log.read_text()[-3000:]
            answer = get(port, "/health")
            return answer is not None and answer[0] == 200

        wait_until(healthy, "a deployed engine that is healthy", deadline_s=240)
        yield port, log


def test_a_study_ends_with_a_file_that_deploys_what_was_measured(vllm_venv: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", "study", str(study_file(tmp_path)), "--runs", str(tmp_path / "runs")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    run = RunDirectory(tmp_path / "runs" / "vllm-cpu")
    summary = run.summary()
    assert done.returncode == (ExitCode.OK if summary.settled else ExitCode.NOTHING_FEASIBLE), done.stderr
    assert (summary.finished, summary.simulated, summary.launched) == (True, False, TRIALS)
    trials = {trial.number: trial for trial in run.trials() if trial.outcome is not Outcome.RULED_OUT}
    assert all(trial.outcome.measured for trial in trials.values()), done.stderr
    for trial in trials.values():
        assert trial.cleanup is not None
        assert (trial.cleanup.left_processes, trial.cleanup.port_free) == (0, True)
        assert trial.resolved["enable_prefix_caching"] is False
        assert trial.versions["vllm"] == "0.32.0+cpu"
    assert summary.best in trials
    best = trials[summary.best]
    evidence = json.loads((run.best / "best.json").read_text())
    assert (evidence["trial"], evidence["engine"]["args"]) == (best.number, dict(best.args))
    assert evidence["reference"]["kind"] == "incumbent"
    assert len(best.args) >= len(INCUMBENT.splitlines())
    assert evidence["confirmed"] is summary.settled

    with deployed(vllm_venv, run.best, tmp_path) as (port, log):
        page = get(port, "/metrics")
        assert page is not None
        now = resolved_settings(log.read_text(), page[1])
    assert now["enable_prefix_caching"] is False
    assert plain(now) == plain(best.resolved)


def plain(value: object) -> Any:
    """As JSON has it, which is how a record was read back."""
    return json.loads(json.dumps(value, default=str))
