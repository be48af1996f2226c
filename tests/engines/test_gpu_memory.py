"""Other programs' memory is seen, never blamed on the candidate, and the engine's own is proven to have come back."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.engines.base import LaunchError
from autotune.engines.gpu_memory import TOLERANCE_BYTES, MemoryWatch, kept, owner, watched
from autotune.engines.process import engine_process
from autotune.engines.telemetry import OnGpus
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Candidate, Cleanup, Failure, Fault, Outcome, Phase, Role
from tests.builders import study_spec
from tests.engines.children import ENDS_ON_SIGTERM, ENGINE, python, wait_for_lines
from tests.nvml_stub.stub import GIB, H100, Driver, install

CUDA_OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
NO_BLOCKS = "ValueError: No available memory for the cache blocks."
ENGINES, TENANT = 500, 600


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Driver:
    return install(monkeypatch, tmp_path)


def hold(driver: Driver, *processes: tuple[int, float]) -> None:
    """Let processes hold so many GiB of GPU 0."""
    listed = ",".join(f"{pid}:{round(gib * GIB)}" for pid, gib in processes)
    driver.set(processes=listed, memory_used=GIB // 8 + round(sum(gib for _, gib in processes) * GIB))


@contextmanager
def launch(gpus: tuple[str, ...] = ("0",)) -> Iterator[MemoryWatch]:
    with watched(gpus) as memory:
        memory.owns = lambda pid: pid == ENGINES
        yield memory


def failed(cause: str, outcome: Outcome = Outcome.OOM_STARTUP, fault: Fault = Fault.CANDIDATE) -> Failure:
    return Failure(outcome=outcome, fault=fault, phase=Phase.LAUNCH, cause=cause)


# --- whose fault it was -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("cause", [CUDA_OOM, NO_BLOCKS])
@pytest.mark.parametrize("outcome", [Outcome.OOM_STARTUP, Outcome.OOM_LOAD])
def test_out_of_memory_on_a_gpu_of_ones_own_is_the_candidates(driver: Driver, cause: str, outcome: Outcome) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 70))
        assert memory.blame(failed(cause, outcome)) == failed(cause, outcome)


@pytest.mark.parametrize("cause", [CUDA_OOM, NO_BLOCKS])
def test_a_neighbour_that_comes_during_the_launch_is_to_blame(driver: Driver, cause: str) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 60), (TENANT, 10))
        blamed = memory.blame(failed(cause))
    assert (blamed.outcome, blamed.fault) == (Outcome.ENVIRONMENT, Fault.ENVIRONMENT)
    assert blamed.cause.startswith(cause)
    assert "0.0 GiB to 10.0 GiB" in blamed.cause
    assert "another program" in blamed.remedy


def test_a_neighbour_that_has_gone_by_the_time_of_the_failure_was_seen(driver: Driver) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 60), (TENANT, 10))
        memory.look()  # as the watching thread does every second
        hold(driver, (ENGINES, 60))
        assert memory.blame(failed(NO_BLOCKS)).fault is Fault.ENVIRONMENT


def test_a_neighbour_that_leaves_disturbs_the_engines_profiling_too(driver: Driver) -> None:
    hold(driver, (TENANT, 10))
    with launch() as memory:
        hold(driver, (ENGINES, 60))
        assert memory.blame(failed(NO_BLOCKS)).fault is Fault.ENVIRONMENT


def test_a_neighbour_that_was_there_explains_a_refused_allocation_but_no_arithmetic(driver: Driver) -> None:
    hold(driver, (TENANT, 10))
    with launch() as memory:
        hold(driver, (ENGINES, 60), (TENANT, 10))
        assert memory.others_bytes == {"0": 10 * GIB}
        assert "held 10.0 GiB of GPU 0 before" in memory.blame(failed(CUDA_OOM)).cause
        assert memory.blame(failed(NO_BLOCKS)) == failed(NO_BLOCKS)


@pytest.mark.parametrize(
    "failure",
    [
        failed("ValueError: unknown dtype", Outcome.BAD_CONFIG),
        failed("Repository not found", Outcome.ENVIRONMENT, Fault.SETUP),
    ],
)
def test_other_failures_stay_what_they_are(driver: Driver, failure: Failure) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 60), (TENANT, 10))
        assert memory.blame(failure) == failure


def test_a_process_that_can_not_be_told_whose_it_is_is_blamed_for_nothing(driver: Driver) -> None:
    with launch() as memory:
        memory.owns = lambda _: None
        hold(driver, (ENGINES, 60), (TENANT, 10))
        assert memory.blame(failed(CUDA_OOM)) == failed(CUDA_OOM)


def test_memory_whose_processes_are_not_listed_is_others_all_the_same(driver: Driver) -> None:
    """In a container the processes of the host are not seen; what is in use is."""
    driver.set(memory_used=20 * GIB)
    with launch() as memory:
        assert memory.others_bytes == {"0": 20 * GIB}
        driver.set(memory_used=75 * GIB)
        assert memory.blame(failed(CUDA_OOM)).fault is Fault.ENVIRONMENT
        assert memory.blame(failed(NO_BLOCKS)).fault is Fault.CANDIDATE


def test_without_nvml_nothing_is_known_and_nothing_changes(driver: Driver, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AUTOTUNE_NVML_STUB")
    with launch() as memory:
        assert (memory.gpus, memory.others_bytes, memory.back()) == ((), {}, {})
        assert memory.blame(failed(CUDA_OOM)) == failed(CUDA_OOM)


# --- memory that comes back -------------------------------------------------------------------------------------------


def test_memory_that_is_back_is_proven(driver: Driver) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 70))
        hold(driver)
        memory.settle()
    proof = memory.proven(Cleanup(left_processes=0, port_free=True))
    assert proof is not None
    assert proof.gpu_memory == {"0": (GIB // 8, GIB // 8)}
    assert kept(proof) is None


def test_memory_that_comes_back_late_is_waited_for(driver: Driver) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 70))
        later = threading.Timer(0.3, hold, (driver,))
        later.start()
        assert memory.back() == {"0": (GIB // 8, GIB // 8)}
        later.join()


def test_memory_that_stays_is_a_failure_of_the_environment(driver: Driver) -> None:
    with launch() as memory:
        hold(driver, (ENGINES, 3))
        memory.settle(deadline_s=0.1)
    failure = kept(memory.proven(Cleanup(left_processes=0, port_free=True)))
    assert failure is not None
    assert (failure.outcome, failure.fault, failure.phase) == (Outcome.ENVIRONMENT, Fault.ENVIRONMENT, Phase.STOP)
    assert "GPU 0 held 0.1 GiB before the launch and 3.1 GiB" in failure.cause


def test_memory_that_a_newcomer_took_meanwhile_is_not_waited_for(driver: Driver) -> None:
    with launch() as memory:
        hold(driver, (TENANT, 20))
        assert memory.back(deadline_s=3600) == {"0": (GIB // 8, GIB // 8 + 20 * GIB)}


def test_a_little_more_than_before_is_back(driver: Driver) -> None:
    cleanup = Cleanup(left_processes=0, port_free=True, gpu_memory={"0": (0, TOLERANCE_BYTES)})
    assert kept(cleanup) is None
    assert kept(None) is None


# --- in a launch ------------------------------------------------------------------------------------------------------


@contextmanager
def launched(
    folder: Path, mode: str = "", *, simulated: bool = False, on_phase: Callable[[str], None] = lambda _: None
) -> Iterator[OnGpus]:
    spec = EngineSpec(kind=EngineKind.VLLM, command=(sys.executable, "-c", ENGINE), env={"FAKE_MODE": mode})
    engine = VllmEngine(study_spec(engine=spec), simulated=simulated)
    candidate = Candidate(params={}, args={}, role=Role.SEARCH, fingerprint="f")
    with engine.launch(candidate, trial_dir=folder, gpus=("0", "1"), on_phase=on_phase) as server:
        assert isinstance(server, OnGpus)
        yield server


@pytest.mark.integration
def test_a_launch_records_the_memory_before_it_and_after_its_stop(driver: Driver, tmp_path: Path) -> None:
    driver.set(1, **H100 | {"processes": f"7:{GIB}", "memory_used": GIB})
    with launched(tmp_path) as server:
        assert server.gpus == ("0", "1")
        assert server.others_bytes == {"0": 0, "1": GIB}
        assert server.owns(os.getpid()) is False
    cleanup = getattr(server, "cleanup")  # noqa: B009 - of the wider protocol
    assert cleanup.gpu_memory == {"0": (GIB // 8, GIB // 8), "1": (GIB, GIB)}


@pytest.mark.integration
def test_an_engine_that_finds_no_memory_beside_a_neighbour_teaches_nothing(driver: Driver, tmp_path: Path) -> None:
    def neighbour_comes(_phase: str) -> None:
        hold(driver, (os.getpid(), 30))

    with pytest.raises(LaunchError) as caught, launched(tmp_path, "exit", on_phase=neighbour_comes):
        pass
    assert caught.value.failure.fault is Fault.ENVIRONMENT
    assert "0.0 GiB to 30.0 GiB" in caught.value.failure.cause
    assert caught.value.others_bytes == {"0": 0}
    assert caught.value.cleanup is not None
    assert caught.value.cleanup.gpu_memory == {"0": (GIB // 8, GIB // 8 + 30 * GIB)}


@pytest.mark.integration
def test_a_simulated_engine_is_on_no_gpu(driver: Driver, tmp_path: Path) -> None:
    with launched(tmp_path, simulated=True) as server:
        assert (server.gpus, server.others_bytes) == ((), {})


@pytest.mark.integration
def test_an_engines_processes_are_those_under_its_keeper(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        engine_process(python(ENDS_ON_SIGTERM), env=os.environ, log=log) as process,
        subprocess.Popen(python(ENDS_ON_SIGTERM)) as stranger,
    ):
        wait_for_lines(log)
        owns = owner(process)
        assert owns(process.pid or 0) is True
        assert owns(stranger.pid) is False
        stranger.kill()
        stranger.wait()
        assert owns(stranger.pid) is None
