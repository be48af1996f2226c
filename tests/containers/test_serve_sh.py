"""The script that deploys what was measured in a container: the same image and arguments, secrets by name only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.deploy import Asked, exporter, make_deployment
from autotune.engines.vllm import render_argv
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, StudySpec
from tests.runs import FIXED, dozen, study, summary, write_run

pytestmark = pytest.mark.integration
DIGEST = f"vllm/vllm-openai@sha256:{'a' * 64}"
SECRET = "hf-7c41d1"
BEST = replace(dozen()[5], simulated=False, versions={"container_image": DIGEST, "vllm": "0.32.0"})


def contained(*options: str, runtime: str = "docker", **env: str) -> StudySpec:
    container = ContainerSpec(
        runtime=runtime,  # type: ignore[arg-type]
        image="vllm/vllm-openai:latest",
        mounts=("cache:/root/.cache/vllm",),
        options=options,
    )
    return study(engine=EngineSpec(kind=EngineKind.VLLM, args=FIXED, env=env, container=container))


def ran(spec: StudySpec, folder: Path, **environment: str) -> tuple[list[str], dict[str, str]]:
    """What the script makes the runtime's client do: its arguments, and its environment."""
    assert spec.engine.container is not None
    program = folder / spec.engine.container.runtime
    program.write_text(
        f"#!{sys.executable}\nimport json, os, sys\nprint(json.dumps([sys.argv[1:], dict(os.environ)]))\n"
    )
    program.chmod(0o755)
    script = folder / "serve.sh"
    run = write_run(folder / "run", dozen(), None)
    deployment = make_deployment(run, spec, BEST, None, summary(), asked=Asked(here=True))
    script.write_text(exporter("shell")(deployment)["serve.sh"])
    done = subprocess.run(
        ["sh", str(script)],
        env={"PATH": f"{folder}:{os.environ['PATH']}", "HOME": "/home/me", **environment},
        check=False,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    argv, environ = json.loads(done.stdout)
    return argv, environ


def value_of(argv: list[str], name: str) -> str:
    return argv[argv.index(name) + 1]


def test_the_image_that_was_measured_runs_with_the_arguments_that_were(tmp_path: Path) -> None:
    argv, _ = ran(contained("--cpus", "4"), tmp_path)
    end = argv.index(DIGEST)
    assert argv[:2] == ["run", "--rm"]
    assert argv[end - 2 : end] == ["--entrypoint", "vllm"]
    assert argv[end + 1 :] == ["serve", BEST.model, *render_argv(BEST.args), "--host", "0.0.0.0", "--port", "8000"]
    assert value_of(argv, "--cpus") == "4"
    assert value_of(argv, "--publish") == "127.0.0.1:8000:8000"
    assert value_of(argv, "--gpus") == "all"
    assert value_of(argv, "--shm-size") == "16g"
    assert "/home/me/.cache/huggingface/hub:/autotune/hub" in argv
    assert "cache:/root/.cache/vllm" in argv


def test_address_and_gpus_are_the_callers(tmp_path: Path) -> None:
    argv, _ = ran(contained(), tmp_path, HOST="10.0.0.1", PORT="80", GPUS="device=3", HF_HUB_CACHE="/data/hub")
    assert value_of(argv, "--publish") == "10.0.0.1:80:8000"
    assert value_of(argv, "--gpus") == "device=3"
    assert "/data/hub:/autotune/hub" in argv


def test_podman_gets_its_gpus_by_cdi(tmp_path: Path) -> None:
    argv, _ = ran(contained(runtime="podman"), tmp_path, GPUS="0")
    assert value_of(argv, "--device") == "nvidia.com/gpu=0"


def test_on_the_hosts_network_the_engine_itself_is_told_where_to_listen(tmp_path: Path) -> None:
    argv, _ = ran(contained("--network", "host"), tmp_path, PORT="81")
    assert "--publish" not in argv
    assert argv[-4:] == ["--host", "127.0.0.1", "--port", "81"]


def test_secrets_go_by_name_and_stand_neither_in_the_script_nor_on_the_line(tmp_path: Path) -> None:
    spec = contained(HF_TOKEN="${MY_TOKEN}", VLLM_LOGGING_LEVEL="INFO", PATH="/opt/bin:/usr/bin")
    argv, environ = ran(spec, tmp_path, MY_TOKEN=SECRET)
    assert [value for word, value in pairwise(argv) if word == "--env"] == [
        *("HF_HUB_CACHE=/autotune/hub", "HF_TOKEN", "VLLM_LOGGING_LEVEL", "PATH=/opt/bin:/usr/bin")
    ]
    assert environ["HF_TOKEN"] == SECRET
    assert environ["VLLM_LOGGING_LEVEL"] == "INFO"
    assert SECRET not in str(argv)
    assert SECRET not in (tmp_path / "serve.sh").read_text()


def test_a_secret_that_is_not_set_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="set MY_TOKEN"):
        ran(contained(HF_TOKEN="${MY_TOKEN}"), tmp_path)
