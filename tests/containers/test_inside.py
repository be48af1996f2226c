"""vLLM's launch, versions and preflight in a container, as the rest of the tuner sees them."""

from __future__ import annotations

import os
import platform
import secrets
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.base import LaunchError, Refusal, Resolved, Server
from autotune.engines.simulated.engine import SimulatedEngine
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import ContainerSpec, EngineKind, EngineSpec, SimulateSpec, StudySpec
from autotune.records.trial import Candidate, Fault, Outcome, Phase, Role
from tests.builders import study_spec
from tests.containers.runtimes import Lab, container
from tests.engines.children import python, wait_until
from tests.engines.stub_vllm import write_vllm

CANDIDATE = Candidate(params={}, args={"max_num_seqs": 8}, role=Role.SEARCH, fingerprint="f")
SIMULATOR = (sys.executable, "-m", "autotune.engines.simulated")


def simulated(lab: Lab, *faults: str, **changes: object) -> StudySpec:
    engine = EngineSpec(
        kind=EngineKind.SIMULATED,
        command=SIMULATOR,
        env={"ENGINE_TOKEN": "${MY_TOKEN}"},
        simulate=SimulateSpec(face="server", time_scale=20, faults=faults),
        container=lab.container,
        startup_timeout_s=60.0,
    )
    return study_spec(name=lab.study, engine=replace(engine, **changes))  # type: ignore[arg-type]


@contextmanager
def launched(spec: StudySpec, folder: Path) -> Iterator[Server]:
    engine = SimulatedEngine(spec)
    with engine.launch(CANDIDATE, trial_dir=folder, gpus=("0",), on_phase=lambda _: None) as server:
        yield server


def refused(spec: StudySpec, folder: Path) -> LaunchError:
    with pytest.raises(LaunchError) as caught, launched(spec, folder):
        pass
    return caught.value


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", f"tok-{secrets.token_hex(6)}")


def test_a_simulated_vllm_in_a_container_is_a_server_like_any_other(runtime: Lab, tmp_path: Path) -> None:
    with launched(simulated(runtime), tmp_path) as server:
        assert server.max_model_len == 131072
        assert server.metrics()["vllm:num_requests_running"] == 0
        wait_until(lambda: server.resolved().get("max_num_seqs") == 8, "the log, which follows a moment later")
        assert os.environ["MY_TOKEN"] not in f"{server.argv}"
        assert runtime.ids() != ()
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free, server.cleanup.how) == (0, True, "term")
    assert len(server.cleanup.container or "") == 64


def test_a_death_while_it_starts_is_diagnosed_by_the_log_that_was_followed(runtime: Lab, tmp_path: Path) -> None:
    error = refused(simulated(runtime, "oom:weights"), tmp_path)
    assert error.failure.outcome is Outcome.OOM_STARTUP
    assert "out of memory" in error.failure.cause
    assert error.cleanup is not None
    assert (error.cleanup.how, error.cleanup.left_processes) == ("exited", 0)


def test_one_that_never_gets_ready_is_given_up_and_removed(runtime: Lab, tmp_path: Path) -> None:
    error = refused(simulated(runtime, "hang_at_start", startup_timeout_s=3.0), tmp_path)
    assert error.failure.outcome is Outcome.READY_TIMEOUT
    assert error.cleanup is not None
    assert error.cleanup.left_processes == 0


def test_an_image_that_is_not_here_stops_the_study_with_what_fetches_it(runtime: Lab, tmp_path: Path) -> None:
    absent = replace(runtime.container, image="localhost/absent:1")
    error = refused(simulated(runtime, container=absent), tmp_path)
    assert error.failure.fault is Fault.SETUP
    assert error.failure.remedy.endswith(f"{absent.runtime} pull localhost/absent:1")


def test_what_a_dead_tuner_left_is_removed_at_the_next_start_of_its_study(runtime: Lab, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*python(LEAVING), runtime.container.runtime, runtime.study, str(tmp_path / "left.log")],
        stdout=subprocess.PIPE,
        text=True,
    ) as tuner:
        assert tuner.stdout is not None
        left = tuner.stdout.readline().strip()
    assert runtime.ids() == (left,)
    other = replace(runtime, study=f"{runtime.study}-other")
    with launched(simulated(other), tmp_path):
        assert runtime.ids() == (left,)
    with launched(simulated(runtime), tmp_path):
        assert left not in runtime.ids()


LEAVING = """
import os, signal, sys
from pathlib import Path
from tests.containers.runtimes import lab
from tests.engines.children import IGNORES_SIGTERM
with lab(sys.argv[1], sys.argv[2]).keeping(IGNORES_SIGTERM, Path(sys.argv[3])) as process:
    print(process.container, flush=True)
    os.kill(process.keeper.pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.integration
@pytest.mark.parametrize(
    ("fault", "remedy"), [("daemon", "start the docker service"), ("permission", "group docker"), ("gpu", "nvidia-ctk")]
)
def test_what_docker_refuses_is_the_set_ups_fault_with_a_remedy(
    stand_in: Lab, tmp_path: Path, fault: str, remedy: str
) -> None:
    said = tmp_path / "docker" / "fault"
    said.write_text(fault)
    engine = EngineSpec(kind=EngineKind.VLLM, command=SIMULATOR, container=stand_in.container)
    with (
        pytest.raises(LaunchError) as caught,
        VllmEngine(study_spec(name=stand_in.study, engine=engine)).launch(
            CANDIDATE, trial_dir=tmp_path, gpus=("GPU-1",), on_phase=lambda _: None
        ),
    ):
        pass
    said.unlink()
    assert caught.value.failure.fault is Fault.SETUP
    assert remedy in caught.value.failure.remedy


@pytest.mark.integration
def test_a_runtime_that_is_not_installed_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    engine = EngineSpec(
        kind=EngineKind.SIMULATED, container=ContainerSpec(image="i"), simulate=SimulateSpec(face="server")
    )
    error = refused(study_spec(engine=engine), tmp_path)
    assert error.failure.fault is Fault.SETUP
    assert "`docker`" in error.failure.cause


@pytest.mark.integration
def test_a_server_killed_for_memory_is_told_as_such_and_teaches_nothing(stand_in: Lab, tmp_path: Path) -> None:
    with launched(simulated(stand_in), tmp_path) as server:
        (identity,) = stand_in.ids()
        (tmp_path / "docker" / identity / "oom").touch()
        stand_in.runtime.ask("kill", identity)
        wait_until(lambda: server.exit_code() is not None, "its death")
        failure = server.failure(Phase.LOAD)
    assert failure is not None
    assert (failure.outcome, failure.fault) == (Outcome.ENVIRONMENT, Fault.ENVIRONMENT)
    assert "OOMKilled" in failure.cause


# --- asking -----------------------------------------------------------------------------------------------------------


def stubbed(lab: Lab, folder: Path) -> StudySpec:
    """A study on a stub of vLLM, in whose image a script `vllm` names the Python that has it."""
    write_vllm(folder)
    script = folder / "vllm-program"
    script.write_text(f"#!{sys.executable}\n")
    script.chmod(0o755)
    return study_spec(
        name=lab.study,
        engine=EngineSpec(
            kind=EngineKind.VLLM,
            command=(str(script),),
            env={"PYTHONPATH": str(folder), "SECRET": "${MY_TOKEN}"},
            container=container(lab.container.runtime, mounts=(f"{folder}:{folder}:ro",)),
        ),
    )


def test_versions_are_those_inside_the_image_and_name_it(runtime: Lab, tmp_path: Path) -> None:
    versions = VllmEngine(stubbed(runtime, tmp_path)).versions()
    assert versions["engine_python"] == platform.python_version()
    assert "@sha256:" in (versions["container_image"] or "")
    assert runtime.container.runtime in (versions["container_runtime"] or "").lower()
    assert runtime.ids() == ()


def test_candidates_are_asked_about_inside_the_image(runtime: Lab, tmp_path: Path) -> None:
    told: list[str] = []
    with VllmEngine(stubbed(runtime, tmp_path)).preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is not None
        accepted = preflight.ask({"max_num_seqs": 8})
        assert isinstance(accepted, Resolved), told
        assert accepted.settings["max_model_len"] == 4096
        assert isinstance(preflight.ask({"max_num_seqs": 4096}), Refusal)
        assert len(runtime.ids()) == 1
    assert runtime.ids() == ()
    assert told == []


def test_a_child_that_dies_inside_the_image_is_replaced_and_none_is_left(runtime: Lab, tmp_path: Path) -> None:
    told: list[str] = []
    with VllmEngine(stubbed(runtime, tmp_path)).preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is not None
        assert preflight.ask({"mode": "die"}) is None
        assert isinstance(preflight.ask({"max_num_seqs": 8}), Resolved)
        assert len(runtime.ids()) == 1
    assert runtime.ids() == ()


ASKING = """
import sys, time
from pathlib import Path
from autotune.engines.vllm.engine import VllmEngine
from tests.containers.runtimes import lab
from tests.containers.test_inside import stubbed
engine = VllmEngine(stubbed(lab(sys.argv[1], sys.argv[2]), Path(sys.argv[3])))
with engine.preflight(gpus=(), tell=print) as preflight:
    preflight.ask({})
    print("asked", flush=True)
    time.sleep(600)
"""


def test_the_child_inside_the_image_ends_with_a_tuner_that_is_killed(runtime: Lab, tmp_path: Path) -> None:
    with subprocess.Popen(
        [*python(ASKING), runtime.container.runtime, runtime.study, str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as tuner:
        assert tuner.stdout is not None
        assert tuner.stdout.readline() == "asked\n"
        assert len(runtime.ids()) == 1
        tuner.kill()
    wait_until(lambda: runtime.ids() == (), "the child's end")
