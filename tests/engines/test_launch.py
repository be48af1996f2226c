"""A launch from candidate to ready server to proof of the stop, with a small program in vLLM's place."""

from __future__ import annotations

import http.server
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.engines.base import LaunchError, Server
from autotune.engines.net import fresh_port, listens, port_free
from autotune.engines.process import engine_process
from autotune.engines.readiness import PhaseWatch, Readiness, wait_ready
from autotune.engines.vllm.engine import VllmEngine
from autotune.errors import EnvironmentFault
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Candidate, Fault, Outcome, Phase, Role
from tests.builders import study_spec
from tests.engines.children import ENDS_ON_SIGTERM, ENGINE, python, wait_for_lines, wait_until

pytestmark = pytest.mark.integration
SECRET = "tok-4f1c9a77"


def engine(
    mode: str = "", *, timeout_s: float = 20.0, command: tuple[str, ...] | None = None, **env: str
) -> VllmEngine:
    spec = EngineSpec(
        kind=EngineKind.VLLM,
        command=command or (sys.executable, "-c", ENGINE),
        env={"FAKE_MODE": mode, "FAKE_TOKEN": "${MY_TOKEN}", **env},
        startup_timeout_s=timeout_s,
    )
    return VllmEngine(study_spec(engine=spec))


@contextmanager
def launched(engine: VllmEngine, trial_dir: Path, phases: list[str] | None = None) -> Iterator[Server]:
    candidate = Candidate(params={}, args={"max_num_seqs": 8}, role=Role.SEARCH, fingerprint="f")
    heard = phases if phases is not None else []
    with engine.launch(candidate, trial_dir=trial_dir, gpus=("1", "3"), on_phase=heard.append) as server:
        yield server


def refused(engine: VllmEngine, trial_dir: Path) -> LaunchError:
    with pytest.raises(LaunchError) as caught, launched(engine, trial_dir):
        pass
    return caught.value


@pytest.fixture(autouse=True)
def _token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", SECRET)


def test_a_healthy_launch_is_ready_tells_about_itself_and_leaves_nothing(tmp_path: Path) -> None:
    phases: list[str] = []
    with launched(engine(), tmp_path, phases) as server:
        assert 0.6 < server.startup_s < 20
        assert server.endpoint.model_name == "served-name"
        assert server.max_model_len == 512
        assert server.metrics() == {"vllm:n_total": 5.0}
        assert server.warnings() == ("prefix caching is off for this model",)
        assert server.exit_code() is None
        assert server.failure(Phase.LOAD) is None
        assert server.cleanup is None
        assert server.argv[3:6] == ("serve", "meta-llama/Llama-3.1-8B-Instruct", "--max-num-seqs")
    assert phases == ["starting", "loading weights", "ready"]
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free) == (0, True)


def test_a_secret_given_by_reference_reaches_the_engine_and_no_output_of_ours(tmp_path: Path) -> None:
    with launched(engine(), tmp_path) as server:
        wait_for_lines(tmp_path / "engine.log")
        shown = f"{server.log_tail(100)} {server.argv} {server.endpoint}"
        assert SECRET in (tmp_path / "engine.log").read_text()
    assert SECRET not in shown
    assert "token is <redacted>" in shown


def test_a_reference_to_a_variable_that_is_not_set_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(EnvironmentFault, match="MY_TOKEN"), launched(engine(), tmp_path):
        pass


def test_an_engine_that_exits_is_diagnosed_by_its_root_error(tmp_path: Path) -> None:
    error = refused(engine("exit"), tmp_path)
    assert error.failure.outcome is Outcome.OOM_STARTUP
    assert error.failure.cause.startswith("ValueError: No available memory")
    assert error.log_tail[-1].startswith("RuntimeError: Engine core")
    assert error.cleanup is not None
    assert error.cleanup.left_processes == 0


def test_a_run_directory_given_as_a_relative_path_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    folder = Path("trials", "0000")
    folder.mkdir(parents=True)
    assert refused(engine("exit"), folder).failure.outcome is Outcome.OOM_STARTUP
    assert "No available memory" in (tmp_path / folder / "engine.log").read_text()


def test_the_errors_of_an_earlier_attempt_are_not_taken_for_this_ones(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("OSError: [Errno 98] Address already in use\n")
    assert refused(engine("exit"), tmp_path).failure.outcome is Outcome.OOM_STARTUP


@pytest.mark.parametrize("models", ["{}", '{"data": []}', '{"data": 5}', '{"data": ["m"]}', "[]", "no JSON"])
def test_a_server_that_does_not_name_its_models_is_asked_for_the_one_it_was_given(tmp_path: Path, models: str) -> None:
    with launched(engine(FAKE_MODELS=models), tmp_path) as server:
        assert server.endpoint.model_name == "meta-llama/Llama-3.1-8B-Instruct"
        assert server.max_model_len is None


def test_an_engine_that_hangs_is_given_up_at_the_deadline_and_killed(tmp_path: Path) -> None:
    error = refused(engine("hang", timeout_s=0.8), tmp_path)
    assert error.failure.outcome is Outcome.READY_TIMEOUT
    assert "Starting to load model" in error.failure.cause
    assert error.cleanup is not None
    assert (error.cleanup.how, error.cleanup.left_processes) == ("kill", 0)


def test_a_missing_program_is_the_set_ups_fault(tmp_path: Path) -> None:
    error = refused(engine(command=("/nowhere/vllm",)), tmp_path)
    assert error.failure.fault is Fault.SETUP
    assert not error.failure.outcome.teaches_infeasible
    assert "/nowhere/vllm" in error.failure.cause


def test_a_server_that_ends_under_load_with_code_0_and_no_word_teaches_nothing(tmp_path: Path) -> None:
    with launched(engine("dies"), tmp_path) as server:
        wait_until(lambda: server.exit_code() is not None, "the server's death")
        failure = server.failure(Phase.LOAD)
    assert server.exit_code() == 0
    assert failure is not None
    assert failure.outcome is Outcome.UNKNOWN


class Healthy(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


def test_a_foreign_server_on_the_port_is_not_taken_for_the_engine(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with (
        http.server.HTTPServer(("127.0.0.1", 0), Healthy) as foreign,
        engine_process(python(ENDS_ON_SIGTERM), env=os.environ, log=log) as process,
    ):
        thread = threading.Thread(target=foreign.serve_forever, args=(0.05,))
        thread.start()
        wait_for_lines(log)
        watch = PhaseWatch(log, (), lambda _: None)
        assert wait_ready(process, foreign.server_port, timeout_s=5.0, watch=watch) is Readiness.FOREIGN
        assert not port_free(foreign.server_port)
        foreign.shutdown()
        thread.join()


def test_a_fresh_port_is_free_and_listened_on_by_nobody() -> None:
    port = fresh_port()
    assert port_free(port)
    assert not listens([], port)
