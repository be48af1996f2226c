"""TensorRT-LLM in a container: what stands on its line, its stand-in served from one, its own checks in the image."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import yaml

from autotune.engines.base import LaunchError, Refusal, Resolved, Server
from autotune.engines.prepare import prepare
from autotune.engines.tensorrt_llm.container import trtllm_containers
from autotune.engines.tensorrt_llm.engine import TensorRtLlmEngine
from autotune.errors import EnvironmentFault, ExitCode
from autotune.load import probe
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, SimulateSpec, StudySpec
from autotune.records.trial import Candidate, Fault, Outcome, RequestPlan, Role
from autotune.trial.store import RunDirectory
from tests.builders import study_spec
from tests.containers.runtimes import ROOT, Lab, container
from tests.engines.children import wait_until
from tests.engines.test_prepare import model

STAND_IN = (sys.executable, "-m", "autotune.engines.simulated.trtllm")
ARGS = {"max_batch_size": 8, "max_seq_len": 512, "kv_cache_config": {"dtype": "fp8"}}
CANDIDATE = Candidate(params={}, args=ARGS, role=Role.SEARCH, fingerprint="f")


def follows(words: tuple[str, ...], name: str) -> list[str]:
    return [value for word, value in pairwise(words) if word == name]


def simulated(lab: Lab, *faults: str) -> StudySpec:
    engine = EngineSpec(
        kind=EngineKind.TENSORRT_LLM,
        command=STAND_IN,
        simulate=SimulateSpec(face="server", time_scale=20, faults=faults),
        container=lab.container,
        startup_timeout_s=60.0,
    )
    return study_spec(name=lab.study, engine=engine)


@contextmanager
def launched(spec: StudySpec, folder: Path) -> Iterator[Server]:
    with TensorRtLlmEngine(spec).launch(CANDIDATE, trial_dir=folder, gpus=("0",), on_phase=lambda _: None) as server:
        yield server


# --- the line ---------------------------------------------------------------------------------------------------------


@pytest.mark.integration
def test_the_line_is_nvidias_with_shared_memory_of_its_own(
    stand_in: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_TOKEN", "tok-1")
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=stand_in.container, env={"HF_TOKEN": "${MY_TOKEN}"})
    spec = study_spec(name=stand_in.study, model=str(model(tmp_path / "m")), engine=engine)
    containers = trtllm_containers(spec, stand_in.container)
    plan, _ = containers.launch(ARGS, folder=tmp_path / "0003", port=4321, gpus=("GPU-1", "GPU-2"))
    words = plan.argv
    assert follows(words, "--gpus") == ['"device=GPU-1,GPU-2"']
    assert follows(words, "--ulimit") == ["memlock=-1", "stack=67108864"]
    assert follows(words, "--shm-size") == ["16g"]
    mounts = follows(words, "--volume")
    assert f"{tmp_path}/0003/options.yaml:/autotune/options.yaml:ro" in mounts
    assert f"{tmp_path}/m:{tmp_path}/m:ro" in mounts
    assert set(follows(words, "--env")) == {"TRTLLM_NO_USAGE_STATS", "HF_TOKEN"}  # by name, no value on the line
    assert (plan.env["TRTLLM_NO_USAGE_STATS"], plan.env["HF_TOKEN"]) == ("1", "tok-1")
    entry = words.index("--entrypoint")
    assert words[entry + 1] == "bash"
    assert words[entry + 3 :] == (
        "-c", 'exec "$0" "$@"', "trtllm-serve", "serve", f"{tmp_path}/m", "--host", "0.0.0.0", "--port", "8000",
        "--config", "/autotune/options.yaml",
    )  # fmt: skip
    assert yaml.safe_load(plan.files["options.yaml"]) == {"enable_iter_perf_stats": True, **ARGS}


@pytest.mark.parametrize(
    ("image", "said"),
    [
        ("nvcr.io/nvidia/tensorrt-llm/release", "names no release"),
        ("nvcr.io/nvidia/tensorrt-llm/release:1.2.1", None),
        ("nvcr.io/nvidia/tensorrt-llm/release@sha256:5", None),
        ("localhost:5000/mine", None),
    ],
)
def test_an_image_of_nvidias_registry_names_its_release(image: str, said: str | None) -> None:
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=ContainerSpec(image=image))
    spec = study_spec(engine=engine)
    problems = [p for p in TensorRtLlmEngine(spec).problems(spec) if p.path[:2] == ("engine", "container")]
    assert [problem.message.endswith(said) for problem in problems if said] == ([True] if said else [])
    if said:
        assert problems[0].path == ("engine", "container", "image")
        assert "nvcr.io/nvidia/tensorrt-llm/release:" in problems[0].hint


# --- served -----------------------------------------------------------------------------------------------------------


def test_the_stand_in_in_a_container_is_a_server_like_any_other(runtime: Lab, tmp_path: Path) -> None:
    with launched(simulated(runtime), tmp_path) as server:
        assert server.max_model_len == 512
        wait_until(lambda: server.resolved().get("max_batch_size") == 8, "the log, which follows a moment later")
        asked = RequestPlan(index=0, at_s=None, output_tokens=4, prompt_ids=tuple(range(300, 316)))
        assert probe(server.endpoint, asked, timeout_s=30).error is None
        assert len(runtime.ids()) == 1
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free, server.cleanup.how) == (0, True, "term")


def test_memory_that_runs_out_inside_is_diagnosed_by_the_log_that_was_followed(runtime: Lab, tmp_path: Path) -> None:
    with pytest.raises(LaunchError) as caught, launched(simulated(runtime, "oom:kv_allocation"), tmp_path):
        pass
    assert (caught.value.failure.outcome, caught.value.failure.fault) == (Outcome.OOM_STARTUP, Fault.CANDIDATE)
    assert caught.value.cleanup is not None
    assert caught.value.cleanup.left_processes == 0


@pytest.mark.integration
def test_an_image_that_is_not_here_is_one_clear_line_at_the_launch_and_when_preparing(
    stand_in: Lab, tmp_path: Path
) -> None:
    absent = ContainerSpec(image="no-such-image:1", runtime=stand_in.container.runtime)
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=absent)
    spec = study_spec(name=stand_in.study, model=str(model(tmp_path / "m")), engine=engine)
    with pytest.raises(LaunchError) as caught, launched(spec, tmp_path):
        pass
    assert caught.value.failure.fault is Fault.SETUP
    assert caught.value.failure.remedy.endswith("docker pull no-such-image:1")
    with pytest.raises(EnvironmentFault, match="no-such-image:1 could not be pulled"):
        prepare(spec, print)


@pytest.mark.integration
def test_what_is_prepared_is_the_image_then_the_model(stand_in: Lab, tmp_path: Path) -> None:
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=replace(stand_in.container, image="acme"))
    spec = study_spec(name=stand_in.study, model=str(model(tmp_path / "m")), engine=engine)
    image, whole = prepare(spec, print).lines
    assert image.startswith("image acme: pulled")
    assert whole == f"model {tmp_path}/m: whole"


@pytest.mark.integration
def test_a_model_that_can_not_be_fetched_inside_is_told_and_leaves_no_container(
    stand_in: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    for name in ("HF_HUB_OFFLINE", "HF_HUB_CACHE"):
        monkeypatch.delenv(name, raising=False)
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=stand_in.container, command=(sys.executable,))
    with pytest.raises(EnvironmentFault, match="could not be fetched"):
        prepare(study_spec(name=stand_in.study, model="org/m", engine=engine), print)
    assert stand_in.ids() == ()


# --- asked ------------------------------------------------------------------------------------------------------------

LLM_ARGS = """
class TorchLlmArgs:
    def __init__(self, model, max_batch_size=1, **options):
        if max_batch_size > 64:
            raise ValueError("max_batch_size is beyond what this release takes")
        self.max_batch_size = max_batch_size
"""


def stubbed(lab: Lab, folder: Path) -> StudySpec:
    """A study on an image whose `trtllm-serve` names a Python that has a small TensorRT-LLM."""
    package = folder / "tensorrt_llm" / "llmapi"
    package.mkdir(parents=True)
    for path in (package.parent / "__init__.py", package / "__init__.py"):
        path.write_text("")
    (package / "llm_args.py").write_text(LLM_ARGS)
    program = folder / "trtllm-serve"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    inside = container(lab.container.runtime, mounts=(f"{folder}:{folder}:ro",))
    engine = EngineSpec(
        kind=EngineKind.TENSORRT_LLM, command=(str(program),), env={"PYTHONPATH": str(folder)}, container=inside
    )
    return study_spec(name=lab.study, engine=engine)


def test_torchllmargs_in_the_image_decides(runtime: Lab, tmp_path: Path) -> None:
    told: list[str] = []
    with TensorRtLlmEngine(stubbed(runtime, tmp_path)).preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is not None
        taken, refused = preflight.ask({"max_batch_size": 8}), preflight.ask({"max_batch_size": 65})
        by_rule = preflight.ask({"cuda_graph_config": {"batch_sizes": [1], "max_batch_size": 8}})
    assert isinstance(taken, Resolved)
    assert taken.settings == {"max_batch_size": 8}
    assert isinstance(refused, Refusal)
    assert "beyond what this release takes" in refused.failure.cause
    assert isinstance(by_rule, Refusal)
    assert told == []
    assert runtime.ids() == ()


@pytest.mark.integration
def test_without_the_image_the_shipped_facts_decide_and_say_so(stand_in: Lab) -> None:
    absent = replace(stand_in.container, image="no-such-image:1")
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, container=absent)
    told: list[str] = []
    spec = study_spec(name=stand_in.study, engine=engine)
    with TensorRtLlmEngine(spec).preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is not None
        assert isinstance(preflight.ask({"cuda_graph_config": {"batch_sizes": [1], "max_batch_size": 8}}), Refusal)
        assert preflight.ask({"max_batch_size": 8}) is None
    assert len(told) == 1
    assert "rules for" in told[0]
    assert "no-such-image:1" in told[0]


def test_versions_are_those_inside_the_image_and_name_it(runtime: Lab, tmp_path: Path) -> None:
    versions = TensorRtLlmEngine(stubbed(runtime, tmp_path)).versions()
    assert "@sha256:" in (versions["container_image"] or "")
    assert (versions["engine_python"] or "").count(".") == 2
    assert versions["tensorrt_llm"] is None  # no metadata of it is installed there


# --- a whole study ----------------------------------------------------------------------------------------------------


@pytest.mark.podman
def test_a_study_of_the_stand_in_in_containers_ends_with_files_and_leaves_none(podman: Lab, tmp_path: Path) -> None:
    study = {
        "name": podman.study,
        "model": "meta-llama/Llama-3.1-8B-Instruct",
        "engine": {
            "kind": "tensorrt_llm",
            "command": list(STAND_IN),
            "simulate": {"face": "server", "time_scale": 20},
            "startup_timeout_s": 60,
            "container": {
                "runtime": podman.container.runtime,
                "image": podman.container.image,
                "mounts": list(podman.container.mounts),
                "options": list(podman.container.options),
            },
        },
        "search_space": "tensorrt_llm/default",
        "objective": {
            "name": "quick",
            "maximize": "output_tok_per_s",
            "slos": {"ttft_ms.p75": 10_000, "error_ratio": 0.2},
            "workload": {"input_tokens": 64, "output_tokens": 16},
            "load": {"concurrency": 4, "duration_s": 1, "warmup_s": 0.5},
            "confidence": 0.9,
        },
        "budget": {"trials": 2},
        "finals": False,
    }
    file, runs = tmp_path / "study.yaml", tmp_path / "runs"
    file.write_text(yaml.safe_dump(study, sort_keys=False))
    command = [sys.executable, "-m", "autotune.cli", "study", str(file), "--runs", str(runs), "--accept-unsure"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ))
    assert done.returncode in (ExitCode.OK, ExitCode.NOTHING_FEASIBLE), done.stderr
    run = RunDirectory(runs / podman.study)
    trials = [trial for trial in run.trials() if trial.outcome is not Outcome.RULED_OUT]
    assert [trial.outcome.measured for trial in trials] == [True, True]
    for trial in trials:
        assert trial.simulated
        assert trial.cleanup is not None
        assert len(trial.cleanup.container or "") == 64
        assert "/options.yaml:/autotune/options.yaml:ro" in " ".join(trial.argv)
    assert podman.ids() == ()
    assert json.loads((run.best / "best.json").read_text())["simulated"] is True
