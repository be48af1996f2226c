from __future__ import annotations

import http.client
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest

from autotune.errors import EnvironmentFault, InputError
from autotune.report.dashboard import HOST, dashboard_server, storage_url
from autotune.trial.store import RunDirectory
from tests.runs import study, write_run


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    run = write_run(tmp_path / "run", [], None)
    optuna.create_study(storage=run.storage_url, study_name="llama-8b-chat")
    return run


@pytest.fixture
def port(run: RunDirectory) -> Iterator[int]:
    with dashboard_server(run, None) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def ask(port: int, path: str, host: str) -> tuple[int, str]:
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers={"Host": host})
    response = connection.getresponse()
    text = response.read().decode()
    connection.close()
    return response.status, text


def test_it_serves_the_study_on_loopback(port: int) -> None:
    status, text = ask(port, "/api/studies", f"{HOST}:{port}")
    assert status == 200
    assert "llama-8b-chat" in text


def test_a_trial_that_missed_an_slo_is_shown_as_infeasible(run: RunDirectory, port: int) -> None:
    held = optuna.load_study(storage=run.storage_url, study_name="llama-8b-chat")
    for value, violation in ((1.0, -0.5), (9.0, 0.4)):
        held.add_trial(optuna.trial.create_trial(value=value, constraints={"launch": 0.0, "ttft_ms.p90": violation}))
    status, text = ask(port, "/api/studies/1?after=0", f"{HOST}:{port}")
    assert status == 200
    shown = [trial["constraints"] for trial in json.loads(text)["trials"]]
    assert [sorted(constraints) for constraints in shown] == [[-0.5, 0.0], [0.0, 0.4]]


def test_another_host_name_is_refused(port: int) -> None:
    assert ask(port, "/api/studies", f"evil.example:{port}")[0] == 403


def test_a_taken_port_is_named(run: RunDirectory, port: int) -> None:
    with pytest.raises(EnvironmentFault, match=f"port {port} of 127.0.0.1 can't be used"), dashboard_server(run, port):
        pass


def test_no_storage_yet_makes_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [], None)
    with pytest.raises(InputError, match=r"no study\.db yet"):
        storage_url(run)
    assert not (run.path / "study.db").exists()


def test_the_studys_own_storage_is_used(tmp_path: Path) -> None:
    assert storage_url(write_run(tmp_path, [], None, study(storage="sqlite:///x.db"))) == "sqlite:///x.db"


def test_without_the_extra_it_says_what_to_install(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna_dashboard", None)
    with (
        pytest.raises(EnvironmentFault, match=r"pip install 'autotune-llm\[dashboard\]'"),
        dashboard_server(run, None),
    ):
        pass


@pytest.mark.integration
def test_ctrl_c_ends_it_cleanly(run: RunDirectory) -> None:
    program = (
        "import pathlib, sys; from autotune.report.dashboard import open_dashboard; "
        "from autotune.trial.store import RunDirectory; "
        "open_dashboard(RunDirectory(pathlib.Path(sys.argv[1])), port=None, open_browser=False)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program, str(run.path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline().startswith(f"http://{HOST}:")
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=60)
    assert child.returncode == 0
    assert "Traceback" not in errors
