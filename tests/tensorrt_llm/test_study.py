"""A whole study on the stand-in: labelled, the closed form tried first, and files that deploy what was measured."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.deploy import Asked, exporter, make_deployment
from autotune.engines.base import engine_for
from autotune.engines.tensorrt_llm.options import options, render_options
from autotune.pipeline import read_study, run_study
from autotune.records.spec import EngineKind, EngineSpec, StudySpec
from autotune.records.trial import Candidate, Role, TrialRecord
from autotune.trial.store import RunDirectory
from tests.runs import dozen, study, summary, write_run

STUDY = """
name: small
model: meta-llama/Llama-3.1-8B-Instruct
engine: {kind: tensorrt_llm, simulate: {gpu: h100, face: server, time_scale: 10}, startup_timeout_s: 60}
search_space: tensorrt_llm/default
objective:
  name: small
  maximize: output_tok_per_s_per_gpu
  slos: {ttft_ms.p50: 5000}
  workload: {input_tokens: {uniform: [16, 64]}, output_tokens: {uniform: [4, 8]}}
  load: {concurrency: 4, duration_s: 1, warmup_s: 0.2}
budget: {trials: 2}
finals: false
"""


class Silent:
    """A view that keeps what it is told."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    def phase(self, number: int, candidate: Candidate, text: str) -> None:
        """Not shown."""

    def finished(self, record: TrialRecord) -> None:
        """Not shown."""

    def message(self, text: str) -> None:
        self.messages.append(text)


@pytest.mark.integration
def test_a_study_from_file_to_best(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(STUDY)
    spec = read_study(path)
    run = RunDirectory(path=tmp_path / "run")
    found = run_study(spec, engine_for(spec), run, Silent())
    reference, first = run.trials()
    assert (reference.role, reference.args) == (Role.REFERENCE, {})
    assert first.args["max_batch_size"] == 2048  # the closed form's 4,096, taken to the space's end
    assert first.args["enable_chunked_prefill"] is True
    assert first.args["cuda_graph_config"] == {"enable_padding": False, "max_batch_size": 2048}
    assert all(record.simulated and record.outcome.measured for record in run.trials())
    assert (found.simulated, found.confirmed) == (True, False)
    best = json.loads((run.best / "best.json").read_text())
    assert (best["simulated"], best["confirmed"], best["engine"]["kind"]) == (True, False, "tensorrt_llm")
    text = (run.best / "options.yaml").read_text()
    measured = run.trial_directory(best["trial"]) / "options.yaml"
    assert yaml.safe_load(text) == yaml.safe_load(measured.read_text())
    assert "SIMULATED" in text
    assert "SIMULATED" in (run.best / "serve.sh").read_text()


def trtllm_study(engine: EngineSpec) -> StudySpec:
    spec = study(engine=engine)
    return replace(spec, search_space=replace(spec.search_space, engine=EngineKind.TENSORRT_LLM))


def test_the_script_starts_the_measured_words(tmp_path: Path) -> None:
    stub = tmp_path / "bin" / "trtllm-serve"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\nprintf "%s\\n" "$@" "$TRTLLM_NO_USAGE_STATS"\n')
    stub.chmod(0o755)
    spec = trtllm_study(EngineSpec(kind=EngineKind.TENSORRT_LLM, command=(str(stub),), env={"A": "b c"}))
    run = write_run(tmp_path / "run", dozen(), None)
    best = make_deployment(run, spec, dozen()[5], None, summary(), asked=Asked(here=True))
    script = tmp_path / "serve.sh"
    script.write_text(exporter("shell")(best)["serve.sh"])
    done = subprocess.run(
        ["sh", str(script)], capture_output=True, text=True, check=True, env={**os.environ, "PORT": "7000"}
    )
    assert done.stdout.split("\n")[:-1] == [
        "serve", best.model, "--host", "127.0.0.1", "--port", "7000", "--config", f"{tmp_path}/options.yaml", "1",
    ]  # fmt: skip


VALUES = st.booleans() | st.integers(-(2**40), 2**40) | st.floats(allow_nan=False, allow_infinity=False) | st.text()
NAMES = st.from_regex(r"[a-z_]{1,12}", fullmatch=True)


@settings(max_examples=60)
@given(st.dictionaries(NAMES, VALUES | st.lists(VALUES, max_size=3) | st.dictionaries(NAMES, VALUES, max_size=3)))
def test_what_is_deployed_is_what_was_measured(tmp_path_factory: pytest.TempPathFactory, args: dict[str, Any]) -> None:
    trial = replace(dozen()[5], args=args)
    run = write_run(tmp_path_factory.mktemp("run"), [trial], None)
    spec = trtllm_study(EngineSpec(kind=EngineKind.TENSORRT_LLM))
    text = exporter("trtllm-yaml")(make_deployment(run, spec, trial, None, summary()))["options.yaml"]
    assert text.endswith(render_options(args))
    assert yaml.safe_load(text) == options(args)


def test_the_preflight_child_asks_torchllmargs_and_degrades_to_a_warning(tmp_path: Path) -> None:
    """A small package stands where TensorRT-LLM is: its own could not be run where this was written."""
    from autotune.engines.preflight import asked_child
    from autotune.engines.tensorrt_llm.preflight import CHILD

    package = tmp_path / "tensorrt_llm" / "llmapi"
    package.mkdir(parents=True)
    for folder in (package.parent, package):
        (folder / "__init__.py").write_text("")
    (package / "llm_args.py").write_text(
        "class TorchLlmArgs:\n    def __init__(self, model, max_batch_size=1):\n"
        "        if max_batch_size < 1:\n            raise ValueError('max_batch_size must be positive')\n"
        "        self.max_batch_size = max_batch_size\n"
    )
    told: list[str] = []
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with asked_child((sys.executable, str(CHILD)), "TensorRT-LLM", env=env, tell=told.append) as asked:
        good = asked.ask({"model": "m", "options": {"max_batch_size": 4}})
        bad = asked.ask({"model": "m", "options": {"max_batch_size": 0}})
    assert good is not None
    assert bad is not None
    assert good["settings"] == {"max_batch_size": 4}
    assert (bad["event"], bad["error"]) == ("refused", "ValueError: max_batch_size must be positive")
    assert told == []
    with asked_child((sys.executable, "-I", str(CHILD)), "TensorRT-LLM", env=env, tell=told.append) as absent:
        assert absent.ask({"model": "m", "options": {}}) is None
    assert "No module named 'tensorrt_llm'" in told[0]
