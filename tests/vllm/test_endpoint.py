"""A real vLLM that somebody else started, measured as an endpoint: nothing is launched, its figures are believed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import yaml

from autotune.engines.base import engine_for
from autotune.engines.net import fresh_port, get
from autotune.engines.process import engine_process
from autotune.engines.vllm.logs import LEFTOVERS
from autotune.pipeline import read_study, run_study
from autotune.records.trial import Outcome
from autotune.trial.store import RunDirectory
from tests.engines.children import wait_until
from tests.fakes import ListView
from tests.vllm.test_faults import ENGINE, STUDY

pytestmark = [pytest.mark.vllm_full, pytest.mark.timeout(600)]


def test_a_running_vllm_is_measured_with_the_price_of_its_tokens(vllm_venv: Path, tmp_path: Path) -> None:
    port, log, model = fresh_port(), tmp_path / "server.log", str(vllm_venv / "tiny-model")
    argv = [str(vllm_venv / "bin/vllm"), "serve", model, "--host", "127.0.0.1", "--port", str(port)]
    argv += ["--max-model-len", "256", "--max-num-seqs", "4", "--enforce-eager"]
    log.touch()
    study = {
        "name": "s",
        "model": model,
        "engine": {"kind": "endpoint", "url": f"http://127.0.0.1:{port}/v1"},
        "objective": STUDY["objective"],
        "price": {"usd_per_million_input_tok": 0.5, "usd_per_million_output_tok": 4},
    }
    path = tmp_path / "study.yaml"
    path.write_text(yaml.safe_dump(study))
    env = {**os.environ, **ENGINE["env"]}
    with engine_process(argv, env=env, log=log, port=port, leftovers=LEFTOVERS) as server:

        def healthy() -> bool:
            assert server.exit_code() is None, log.read_text()[-3000:]
            answer = get(port, "/health")
            return answer is not None and answer[0] == 200

        wait_until(healthy, "a healthy server", deadline_s=240)
        spec, run = read_study(path), RunDirectory(tmp_path / "run")
        run_study(spec, engine_for(spec), run, ListView())
    (record,) = run.trials()
    assert record.argv == ()
    assert record.outcome in {Outcome.OK, Outcome.CLIENT_LIMITED}, record.failure
    (level,) = record.measurements
    assert level.errors == 0
    assert level.values["usd_per_million_output_tok"].value > 4
    assert level.counters["server_requests"] > 0  # the audit read vLLM's own /metrics
