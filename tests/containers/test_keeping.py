"""A container is followed to its end and removed, whoever of those around it is killed."""

from __future__ import annotations

import http.server
import os
import secrets
import signal
import subprocess
import threading
from pathlib import Path

import psutil
import pytest

from autotune.engines.containers.failures import not_started
from autotune.engines.net import fresh_port, get
from autotune.engines.process import engine_process
from autotune.engines.readiness import PhaseWatch, Readiness, wait_ready
from autotune.records.trial import Fault
from tests.containers.runtimes import Lab
from tests.engines.children import IGNORES_SIGTERM, gone, python, wait_for_lines, wait_until

SERVES = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"mine")
    def log_message(self, *_):
        pass
print("serving", flush=True)
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Handler).serve_forever()
"""

COUNTS = """
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
for number in range(100_000):
    print(number, flush=True)
    time.sleep(0.02)
"""


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "engine.log"
    path.touch()
    return path


def ready(process: object, port: int, log: Path) -> Readiness:
    watch = PhaseWatch(log, (), lambda _: None)
    return wait_ready(process, port, timeout_s=20.0, watch=watch)  # type: ignore[arg-type]


def clients(process_id: int, word: str) -> list[psutil.Process]:
    """The runtime's clients under a keeper that were started with `word`."""
    return [child for child in psutil.Process(process_id).children() if word in started_with(child)]


def started_with(child: psutil.Process) -> list[str]:
    """The beginning of a process's command line; nothing of one that has just ended."""
    try:
        return child.cmdline()[:4]
    except psutil.NoSuchProcess:  # zombies are such, too
        return []


def test_a_server_in_a_container_is_ready_is_known_as_ours_and_leaves_nothing(runtime: Lab, log: Path) -> None:
    port = fresh_port()
    with runtime.keeping(SERVES, log, publish=port) as process:
        process.grace_s = 10.0
        assert ready(process, port, log) is Readiness.READY
        assert get(port, "/") == (200, "mine")
        assert runtime.ids() == (process.container,)
        assert process.pid in {found.pid for found in process.tree()}
    assert process.cleanup is not None
    assert (process.cleanup.how, process.cleanup.left_processes, process.cleanup.port_free) == ("term", 0, True)
    assert process.cleanup.container == process.container
    assert process.exit_code() == 0
    assert runtime.ids() == ()


def test_one_that_ignores_sigterm_is_killed(runtime: Lab, log: Path) -> None:
    with runtime.keeping(IGNORES_SIGTERM, log) as process:
        process.grace_s = 0.4
        wait_for_lines(log)
    assert process.cleanup is not None
    assert (process.cleanup.how, process.cleanup.left_processes) == ("kill", 0)
    assert process.exit_code() == 128 + signal.SIGKILL
    assert gone(process.pid or 0)


def test_one_that_ends_by_itself_is_told_with_its_code_and_its_whole_log(runtime: Lab, log: Path) -> None:
    # Flushed first: half a line of one stream with a line of the other in between is not put together by podman.
    code = "import sys\nfor n in range(3000): print(n)\nsys.stdout.flush(); sys.stderr.write('last\\n'); sys.exit(3)"
    with runtime.keeping(code, log) as process:
        wait_until(lambda: process.exit_code() is not None, "the exit")
        assert process.exit_code() == 3
        assert not process.oom_killed
        assert sorted(log.read_text().split(), key=str) == sorted([*map(str, range(3000)), "last"], key=str)
    assert process.cleanup is not None
    assert process.cleanup.how == "exited"


def test_a_log_is_whole_though_the_client_that_follows_it_was_killed(runtime: Lab, log: Path) -> None:
    with runtime.keeping(COUNTS, log) as process:
        wait_for_lines(log, 5)
        for client in clients(process.keeper.pid, "logs"):
            client.kill()
        wait_for_lines(log, 120)
        assert process.exit_code() is None
        lines = log.read_text().split("\n")[:100]
    assert lines == [str(number) for number in range(100)]


def test_a_container_lives_on_when_the_client_that_waits_for_it_is_killed(runtime: Lab, log: Path) -> None:
    with runtime.keeping(COUNTS, log) as process:
        wait_for_lines(log, 2)
        waiting = clients(process.keeper.pid, "wait")
        assert waiting
        waiting[0].kill()
        wait_until(lambda: {found.pid for found in clients(process.keeper.pid, "wait")} - {waiting[0].pid}, "another")
        assert process.exit_code() is None
        runtime.runtime.ask("kill", str(process.container))
        wait_until(lambda: process.exit_code() is not None, "its death")
    assert process.exit_code() == 128 + signal.SIGKILL


def test_one_that_somebody_else_removed_has_ended(runtime: Lab, log: Path) -> None:
    with runtime.keeping(COUNTS, log) as process:
        wait_for_lines(log)
        runtime.runtime.remove([str(process.container)])
        wait_until(lambda: process.exit_code() is not None, "the end")
    assert process.cleanup is not None
    assert process.cleanup.left_processes == 0


TUNER = """
import os, sys
from pathlib import Path
from tests.containers.runtimes import lab
with lab(sys.argv[1], sys.argv[2]).keeping(sys.argv[3], Path(sys.argv[4])) as process:
    print(process.keeper.pid, process.pid, process.container, flush=True)
    sys.stdin.read()
"""


def tuner(runtime: Lab, code: str, log: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*python(TUNER), runtime.container.runtime, runtime.study, code, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def told(started: subprocess.Popen[str]) -> tuple[int, int, str]:
    assert started.stdout is not None
    keeper, engine, container = started.stdout.readline().split()
    return int(keeper), int(engine), container


def test_nothing_outlives_a_tuner_that_is_killed(runtime: Lab, log: Path) -> None:
    with tuner(runtime, COUNTS, log) as started:
        keeper, engine, container = told(started)
        assert runtime.ids() == (container,)
        started.kill()
    wait_until(lambda: gone(keeper), "the keeper's end after the tuner's")
    assert gone(engine)
    assert runtime.ids() == ()


def test_a_container_whose_keeper_was_killed_is_still_removed(runtime: Lab, log: Path) -> None:
    with runtime.keeping(IGNORES_SIGTERM, log) as process:
        wait_for_lines(log)
        process.keeper.kill()
    assert process.cleanup is not None
    assert (process.cleanup.how, process.cleanup.left_processes) == ("keeper lost", 0)
    assert gone(process.pid or 0)
    assert runtime.ids() == ()


def test_what_a_tuner_left_that_died_with_its_keeper_is_found_and_only_that(runtime: Lab, log: Path) -> None:
    with tuner(runtime, COUNTS, log) as started:
        keeper, engine, container = told(started)
        with runtime.keeping(COUNTS, log) as living:
            assert runtime.runtime.left_by_the_dead(runtime.study) == ()
            os.kill(keeper, signal.SIGKILL)
            started.kill()
            started.wait()
            assert not gone(engine)
            assert runtime.runtime.left_by_the_dead("another study") == ()
            assert runtime.runtime.left_by_the_dead(runtime.study) == (container,)
            runtime.runtime.remove([container])
            assert gone(engine)
            assert runtime.ids() == (living.container,)


def test_a_secret_reaches_the_program_by_name_and_stands_on_no_command_line(runtime: Lab, log: Path) -> None:
    secret = secrets.token_hex(12)
    code = "import os, time; print(os.environ['ENGINE_TOKEN'], flush=True); time.sleep(600)"
    with runtime.keeping(code, log, env={"ENGINE_TOKEN": secret}) as process:
        assert wait_for_lines(log) == [secret]
        lines = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline")]
        assert any(b"ENGINE_TOKEN" in line for line in lines)
        assert not any(secret.encode() in line for line in lines)
        if runtime.container.runtime == "podman":
            created = runtime.runtime.ask(
                "inspect", "--format", "{{json .Config.CreateCommand}}", str(process.container)
            )
            assert "ENGINE_TOKEN" in created
            assert secret not in created


class Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None: ...


@pytest.mark.podman
def test_on_the_hosts_network_a_stranger_is_told_from_the_container(podman: Lab, log: Path) -> None:
    with (
        http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger,
        podman.keeping(COUNTS, log, listen=stranger.server_port) as process,
    ):
        thread = threading.Thread(target=stranger.serve_forever, args=(0.05,))
        thread.start()
        wait_for_lines(log)
        assert ready(process, stranger.server_port, log) is Readiness.FOREIGN
        stranger.shutdown()
        thread.join()


@pytest.mark.podman
def test_on_the_hosts_network_the_container_is_known_by_its_socket(podman: Lab, log: Path) -> None:
    port = fresh_port()
    with podman.keeping(SERVES, log, listen=port) as process:
        assert ready(process, port, log) is Readiness.READY


def test_a_port_that_is_taken_is_said_by_the_runtime_and_leaves_nothing(runtime: Lab, log: Path) -> None:
    with (
        http.server.HTTPServer(("127.0.0.1", 0), Stranger) as stranger,
        runtime.keeping(SERVES, log, publish=stranger.server_port) as process,
    ):
        failure = not_started(runtime.container, process.error or "", process.error_code)
    assert failure.fault is Fault.ENVIRONMENT
    assert "taken" not in failure.cause  # the runtime's own words
    assert "another program took the port" in failure.remedy
    assert process.cleanup is not None
    assert process.cleanup.how == "not started"
    assert runtime.ids() == ()


def test_a_program_that_the_image_lacks_is_the_set_ups_fault(runtime: Lab, log: Path) -> None:
    kept = runtime.launch()
    line = runtime.line(("nosuch",), kept, port=0, env={})
    with engine_process(line, env=os.environ, log=log, contained=kept) as process:
        failure = not_started(runtime.container, process.error or "", process.error_code)
    assert failure.fault is Fault.SETUP
    assert "engine.command" in failure.remedy
    assert runtime.ids() == ()


@pytest.mark.integration
def test_a_client_that_hangs_after_it_made_the_container_is_given_up_with_its_tuner(
    stand_in: Lab, log: Path, tmp_path: Path
) -> None:
    (tmp_path / "docker" / "fault").write_text("slow")
    with tuner(stand_in, COUNTS, log) as started:
        wait_until(stand_in.ids, "the container that was made")
        keeper = psutil.Process(started.pid).children()[0]
        started.kill()
    wait_until(lambda: gone(keeper.pid), "the keeper's end")
    assert stand_in.ids() == ()


@pytest.mark.integration
def test_a_container_that_the_kernel_killed_for_memory_is_told_as_such(
    stand_in: Lab, log: Path, tmp_path: Path
) -> None:
    with stand_in.keeping(COUNTS, log) as process:
        wait_for_lines(log)
        (tmp_path / "docker" / str(process.container) / "oom").touch()
        os.kill(process.pid or 0, signal.SIGKILL)
        wait_until(lambda: process.exit_code() is not None, "its death")
    assert process.oom_killed
    assert process.exit_code() == 128 + signal.SIGKILL


@pytest.mark.integration
def test_a_runtime_that_can_not_be_asked_any_more_counts_what_its_kernel_still_runs(
    stand_in: Lab, log: Path, tmp_path: Path
) -> None:
    fault = tmp_path / "docker" / "fault"
    with stand_in.keeping(IGNORES_SIGTERM, log) as process:
        process.grace_s = 0.2
        wait_for_lines(log)
        fault.write_text("daemon")
    fault.unlink()
    assert process.cleanup is not None
    assert process.cleanup.left_processes == 0  # its first process was killed by its number
    assert gone(process.pid or 0)
    stand_in.runtime.remove(stand_in.ids())
