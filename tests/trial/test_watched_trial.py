"""A whole trial under watch: the record tells what the audit saw, and whether the GPU is as it was."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.base import Server
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import EngineKind, EngineSpec, FixedLength, LoadSpec, Slo, WorkloadSpec
from autotune.records.trial import Candidate, Cleanup, Fault, Outcome, Phase, Role, TrialRecord
from autotune.trial.run import TrialSetting, run_trial
from autotune.trial.store import RunDirectory
from tests.builders import objective, study_spec
from tests.fakes import ScriptedEngine, ScriptedServer
from tests.nvml_stub.stub import GIB, Driver, install

pytestmark = pytest.mark.integration


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    return install(monkeypatch, tmp_path)


def trial(folder: Path) -> TrialRecord:
    """A trial of the simulated server, which NVML is told to have GPU 0; its SLO can't be met."""
    spec = study_spec(
        engine=EngineSpec(kind=EngineKind.VLLM, command=(sys.executable, "-m", "autotune.engines.simulated")),
        objective=objective(
            slos=(Slo(metric="ttft_ms.p90", limit=1e-3),),
            workload=WorkloadSpec(input_tokens=FixedLength(tokens=64), output_tokens=FixedLength(tokens=8)),
            load=LoadSpec(concurrency=8, duration_s=1.5, warmup_s=0.2),
        ),
    )
    setting = TrialSetting(spec=spec, engine=VllmEngine(spec), run=RunDirectory(folder / "run"), gpus=("0",))
    candidate = Candidate(params={}, args={"max_model_len": 512}, role=Role.SEARCH, fingerprint="f")
    return run_trial(setting, candidate, 1, lambda _: None)


def test_the_record_tells_of_engine_gpu_and_cause(driver: Driver, tmp_path: Path) -> None:
    driver.set(processes=f"999999:{2 * GIB}", memory_used=2 * GIB)
    record = trial(tmp_path)
    assert record.outcome in (Outcome.SLO_MISS, Outcome.CLIENT_LIMITED)  # the latter on a machine that is busy
    assert record.simulated  # the study calls it vLLM: the server says what it is
    assert record.others_bytes == {"0": 2 * GIB}
    assert record.cleanup is not None
    assert record.cleanup.gpu_memory == {"0": (2 * GIB, 2 * GIB)}
    (measurement,) = record.measurements
    assert measurement.counters["server_requests"] >= 20
    assert measurement.counters["gpu_memory_max_bytes"] == 2 * GIB
    assert record.diagnosis is not None
    assert record.diagnosis.evidence.startswith("ttft_ms.p90: ")


class Leaking(ScriptedEngine):
    """Leaves 8 GiB on its GPU."""

    @contextmanager
    def launch(self, candidate: Candidate, **how: Any) -> Iterator[Server]:
        with super().launch(candidate, **how) as server:
            yield server
        assert isinstance(server, ScriptedServer)
        server.cleanup = Cleanup(left_processes=0, port_free=True, gpu_memory={"0": (GIB, 9 * GIB)})


def test_memory_that_does_not_come_back_spoils_the_trial_not_the_candidate(tmp_path: Path) -> None:
    spec = study_spec()
    setting = TrialSetting(spec=spec, engine=Leaking(lambda *_: 100.0), run=RunDirectory(tmp_path / "run"), gpus=("0",))
    candidate = Candidate(params={}, args={}, role=Role.SEARCH, fingerprint="f")
    record = run_trial(setting, candidate, 1, lambda _: None)
    assert record.failure is not None
    assert (record.outcome, record.failure.fault, record.failure.phase) == (
        Outcome.ENVIRONMENT,
        Fault.ENVIRONMENT,
        Phase.STOP,
    )
    assert "9.0 GiB" in record.failure.cause
    assert record.measurements  # what was measured is kept
