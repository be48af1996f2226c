"""A real vLLM is launched, tells what it resolved, and is gone without a trace; also when its tuner is killed."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Candidate, Phase, Role
from tests.builders import study_spec
from tests.engines.children import gone, wait_until

pytestmark = pytest.mark.vllm

ENV = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
ARGS = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 1024, "enforce_eager": True}
OFF = {"enable_prefix_caching": False}


def engine(venv: Path) -> VllmEngine:
    spec = EngineSpec(kind=EngineKind.VLLM, command=(str(venv / "bin/vllm"),), env=ENV, startup_timeout_s=240)
    return VllmEngine(study_spec(model=str(venv / "tiny-model"), engine=spec))


def traces() -> set[Path]:
    """What vLLM is known to leave behind."""
    return {*Path("/dev/shm").iterdir(), *Path(tempfile.gettempdir()).glob("vllm_dist_*")}


def test_versions_come_from_the_engines_own_environment(vllm_venv: Path) -> None:
    versions = engine(vllm_venv).versions()
    assert (versions["vllm"] or "").startswith("0.32.0")
    assert (versions["torch"] or "").startswith("2.13.0")


def test_a_launch_resolves_what_was_asked_and_leaves_nothing(vllm_venv: Path, tmp_path: Path) -> None:
    before, phases = traces(), list[str]()
    candidate = Candidate(params={}, args={**ARGS, **OFF}, role=Role.SEARCH, fingerprint="f")
    with engine(vllm_venv).launch(candidate, trial_dir=tmp_path, gpus=(), on_phase=phases.append) as server:
        resolved = server.resolved()
        assert {name: resolved[name] for name in {**ARGS, **OFF}} == {**ARGS, **OFF}
        assert resolved["block_size"] > 0
        assert (server.max_model_len, server.vocab_size) == (1024, 8192)
        assert server.metrics()["vllm:num_preemptions_total"] == 0
        assert any("Enforce eager set" in warning for warning in server.warnings())
        assert server.failure(Phase.LOAD) is None
    assert phases[0] == "starting"
    assert phases[-1] == "ready"
    assert "loading weights" in phases
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free) == (0, True)
    assert traces() <= before


TUNER = """
import sys
from pathlib import Path
from autotune.records.trial import Candidate, Role
from tests.vllm.test_real_launch import ARGS, engine
candidate = Candidate(params={}, args=ARGS, role=Role.SEARCH, fingerprint="f")
with engine(Path(sys.argv[1])).launch(candidate, trial_dir=Path(sys.argv[2]), gpus=(), on_phase=lambda _: None):
    pass
"""


def test_a_tuner_killed_while_vllm_starts_leaves_nothing(vllm_venv: Path, tmp_path: Path) -> None:
    """SIGTERM is lost by a vLLM that starts (3 of 3 tries), and its worker outlives its API server."""
    before = traces()
    log = tmp_path / "engine.log"
    with subprocess.Popen(
        [sys.executable, "-c", TUNER, str(vllm_venv), str(tmp_path)], start_new_session=True
    ) as tuner:
        # The worker has started: three processes, shared memory, and start-up under way.
        wait_until(lambda: log.exists() and "distributed_init_method" in log.read_text(), "the worker", deadline_s=240)
        family = psutil.Process(tuner.pid).children(recursive=True)
        assert len(family) >= 4
        tuner.kill()
    wait_until(lambda: all(gone(process.pid) for process in family), "the end of vLLM after its tuner's")
    assert traces() <= before
