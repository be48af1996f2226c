"""The keeper leaves nothing behind, whatever the engine does and however the tuner dies."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from autotune.engines.keeper import open_files
from autotune.engines.net import fresh_port
from autotune.engines.process import EngineProcess, engine_process
from autotune.errors import EnvironmentFault
from tests.engines.children import (
    ENDS_ON_SIGTERM,
    IGNORES_SIGTERM,
    KEEPS_SHARED_MEMORY,
    LEAVES_THE_GROUP,
    gone,
    python,
    wait_for_lines,
    wait_until,
)

pytestmark = pytest.mark.integration


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "engine.log"


def test_an_engine_that_handles_sigterm_is_not_killed(log: Path) -> None:
    with engine_process(python(ENDS_ON_SIGTERM), env=os.environ, log=log) as process:
        process.grace_s = 10.0
        wait_for_lines(log)
    assert process.cleanup is not None
    assert (process.cleanup.how, process.cleanup.left_processes) == ("term", 0)
    assert process.exit_code() == 0


def test_an_engine_that_ignores_sigterm_is_killed(log: Path) -> None:
    with engine_process(python(IGNORES_SIGTERM), env=os.environ, log=log) as process:
        process.grace_s = 0.3
        wait_for_lines(log)
        pid = process.pid
    assert pid is not None
    assert gone(pid)
    assert process.cleanup is not None
    assert process.cleanup.how == "kill"
    assert process.cleanup.left_processes == 0
    assert process.exit_code() == -signal.SIGKILL


def test_orphans_that_left_the_group_are_found_and_killed(log: Path) -> None:
    with engine_process(python(LEAVES_THE_GROUP), env=os.environ, log=log) as process:
        process.grace_s = 0.3
        pids = [int(line.split()[1]) for line in wait_for_lines(log, 2)]
        assert not any(gone(pid) for pid in pids)
    assert all(gone(pid) for pid in pids)
    assert process.cleanup is not None
    assert process.cleanup.left_processes == 0


TUNER = """
import os, sys
from pathlib import Path
from autotune.engines.process import engine_process
with engine_process([sys.executable, "-c", sys.argv[1]], env=os.environ, log=Path(sys.argv[2])) as process:
    print(process.keeper.pid, process.pid, flush=True)
    sys.stdin.read()
"""


def test_nothing_outlives_a_tuner_that_is_killed(log: Path) -> None:
    code = LEAVES_THE_GROUP.replace("lambda *_: sys.exit(0)", "signal.SIG_DFL")
    tuner = subprocess.Popen(
        [*python(TUNER), code, str(log)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    with tuner:
        assert tuner.stdout is not None
        keeper, engine = map(int, tuner.stdout.readline().split())
        pids = [keeper, engine, *(int(line.split()[1]) for line in wait_for_lines(log, 2))]
        assert not any(gone(pid) for pid in pids)
        tuner.kill()
    wait_until(lambda: all(gone(pid) for pid in pids), "the engine's end after its tuner's")


def test_signals_of_the_terminal_reach_neither_keeper_nor_engine_and_stay_usable_in_the_engine(log: Path) -> None:
    with engine_process(python(ENDS_ON_SIGTERM), env=os.environ, log=log) as process:
        wait_for_lines(log)
        assert process.pid is not None
        assert len({os.getsid(0), os.getsid(process.keeper.pid), os.getsid(process.pid)}) == 3
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            process.keeper.send_signal(number)
        process.wait(0.2)
        assert process.exit_code() is None
        status = Path(f"/proc/{process.pid}/status").read_text()
    ignored = int(next(line for line in status.splitlines() if line.startswith("SigIgn")).split()[1], 16)
    assert not ignored & (1 << (signal.SIGINT - 1) | 1 << (signal.SIGTERM - 1) | 1 << (signal.SIGHUP - 1))


def test_environment_values_reach_the_engine_but_no_command_line(log: Path) -> None:
    secret = secrets.token_hex(8)
    code = "import os, time; print(os.environ['S'], sorted(os.environ), flush=True); time.sleep(600)"
    with engine_process(python(code), env={"S": secret}, log=log) as process:
        assert wait_for_lines(log) == [f"{secret} ['LC_CTYPE', 'S']"]
        lines = [psutil.Process(pid).cmdline() for pid in (process.keeper.pid, process.pid or 0)]
    assert secret not in str(lines)


def test_shared_memory_of_the_engine_is_removed_and_that_of_others_is_kept(log: Path) -> None:
    with engine_process(python(KEEPS_SHARED_MEMORY), env=os.environ, log=log) as process:
        name = wait_for_lines(log)[0]
        foreign = shared_memory.SharedMemory(create=True, size=4096)
    try:
        assert process.cleanup is not None
        assert process.cleanup.shm_removed == (f"/dev/shm/{name}",)
        assert not Path("/dev/shm", name).exists()
        assert Path("/dev/shm", foreign.name).exists()
    finally:
        foreign.close()
        foreign.unlink()


def test_shared_memory_is_seen_of_a_process_whose_other_files_come_and_go(log: Path) -> None:
    busy = "while True: [os.close(fd) for fd in [os.open('/', os.O_RDONLY) for _ in range(300)]]"
    code = f"import os\n{KEEPS_SHARED_MEMORY}".replace("time.sleep(600)", busy)
    with engine_process(python(code), env=os.environ, log=log) as process:
        name = wait_for_lines(log)[0]
        assert process.pid is not None
        held = [f"/dev/shm/{name}" in list(open_files(process.pid)) for _ in range(300)]
    assert all(held)


def test_shared_memory_of_a_process_that_crashed_is_removed_too(log: Path) -> None:
    code = KEEPS_SHARED_MEMORY.replace("time.sleep(600)", "sys.stdout.flush(); time.sleep(2.5); import os; os._exit(7)")
    with engine_process(python(code), env=os.environ, log=log) as process:
        name = wait_for_lines(log)[0]
        wait_until(lambda: process.exit_code() is not None, "the crash")
    assert process.exit_code() == 7
    assert not Path("/dev/shm", name).exists()


def test_semaphores_which_get_another_name_than_they_are_made_under_are_removed_too(log: Path) -> None:
    code = """
import _multiprocessing, secrets, time
name = "/mp-" + secrets.token_hex(8)
held = _multiprocessing.SemLock(1, 0, 1, name, False)
print("sem." + name[1:], flush=True)
time.sleep(600)
"""
    with engine_process(python(code), env=os.environ, log=log) as process:
        name = wait_for_lines(log)[0]
        assert Path("/dev/shm", name).exists()
    assert process.cleanup is not None
    assert process.cleanup.shm_removed == (f"/dev/shm/{name}",)
    assert not Path("/dev/shm", name).exists()


def test_files_that_the_engine_names_in_its_log_are_removed(log: Path, tmp_path: Path) -> None:
    named, other = tmp_path / "dist_1", tmp_path / "dist_2"
    named.touch()
    other.touch()
    code = f"print('init_method=file://{named}', flush=True)"
    with engine_process(python(code), env=os.environ, log=log, leftovers=[r"file://(\S*/dist_\d)"]) as process:
        wait_for_lines(log)
    assert process.cleanup is not None
    assert process.cleanup.shm_removed == (str(named),)
    assert other.exists()


def test_an_engine_that_ends_by_itself_is_reported_with_its_code(log: Path) -> None:
    with engine_process(python("import sys; print('bye'); sys.exit(3)"), env=os.environ, log=log) as process:
        wait_until(lambda: process.exit_code() is not None, "the exit")
        assert process.exit_code() == 3
    assert process.cleanup is not None
    assert process.cleanup.how == "exited"
    assert log.read_text() == "bye\n"


def test_a_program_that_can_not_be_started_is_an_error_not_an_exception(log: Path) -> None:
    with engine_process(["/nowhere/vllm"], env=os.environ, log=log) as process:
        assert process.error is not None
        assert "/nowhere/vllm" in process.error
    assert process.cleanup is not None
    assert process.cleanup.how == "not started"


def test_an_engine_whose_keeper_was_killed_is_still_stopped(log: Path) -> None:
    forks = "import os, time; os.fork(); print(os.getpid(), flush=True); time.sleep(600)"
    with engine_process(python(forks), env=os.environ, log=log) as process:
        pids = [int(line) for line in wait_for_lines(log, 2)]
        process.keeper.kill()
    assert all(gone(pid) for pid in pids)
    assert process.cleanup is not None
    assert process.cleanup.left_processes == 0


def test_what_was_seen_of_a_tree_is_stopped_too_when_its_keeper_was_killed(log: Path) -> None:
    with engine_process(python(LEAVES_THE_GROUP), env=os.environ, log=log) as process:
        pids = [int(line.split()[1]) for line in wait_for_lines(log, 2)]
        assert {child.pid for child in process.tree()} >= set(pids)
        process.keeper.kill()
    assert all(gone(pid) for pid in pids)


def test_what_an_engine_left_in_memory_and_on_disk_and_its_secrets_go_also_without_its_keeper(
    log: Path, tmp_path: Path
) -> None:
    named, key, memory = tmp_path / "dist_1", secrets.token_hex(8), f"autotune-{secrets.token_hex(8)}"
    named.touch()
    code = f"""
import mmap, os, time
held = os.open("/dev/shm/{memory}", os.O_CREAT | os.O_RDWR)
os.ftruncate(held, 4096)
kept = mmap.mmap(held, 4096)
print("init_method=file://{named}", os.environ["KEY"], flush=True)
time.sleep(600)
"""
    with engine_process(
        python(code), env={**os.environ, "KEY": key}, log=log, leftovers=[r"file://(\S*/dist_\d)"], secrets=[key]
    ) as process:
        wait_until(lambda: process.exit_code() is None and process.claimed, "the claim of what it has in memory")
        process.keeper.kill()
    assert process.cleanup is not None
    assert process.cleanup.how == "keeper lost"
    assert process.cleanup.shm_removed == (f"/dev/shm/{memory}", str(named))
    assert not named.exists()
    assert not Path("/dev/shm", memory).exists()
    assert "init_method" in log.read_text()
    assert key not in log.read_text()


def test_a_working_directory_that_was_deleted_is_said_to_be(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()
    with pytest.raises(EnvironmentFault, match="deleted"), engine_process(python("1"), env=os.environ, log=log):
        pass


def test_the_simulated_server_leaves_shared_memory_and_the_keeper_removes_it(log: Path) -> None:
    fault = [sys.executable, "-m", "autotune.engines.simulated", "serve", "meta-llama/Llama-3.1-8B-Instruct"]
    argv = [*fault, "--port", str(fresh_port()), "--sim-fault", "leaves_shm"]
    with engine_process(argv, env=os.environ, log=log) as process:
        wait_until(lambda: "Created shared memory" in log.read_text(), "the file in shared memory")
    assert process.cleanup is not None
    assert len(process.cleanup.shm_removed) == 1
    assert not Path(process.cleanup.shm_removed[0]).exists()


def test_an_error_in_the_body_stops_the_engine_as_well(log: Path) -> None:
    seen: list[EngineProcess] = []

    def body() -> None:
        with engine_process(python(ENDS_ON_SIGTERM), env=os.environ, log=log) as process:
            seen.append(process)
            wait_for_lines(log)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        body()
    assert gone(seen[0].pid or 0)


def test_the_keeper_is_not_misled_by_modules_in_the_tuners_directory(
    log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "json.py").write_text("raise SystemExit('shadowed')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with engine_process([sys.executable, "-I", "-c", "print('up')"], env=os.environ, log=log):
        assert wait_for_lines(log) == ["up"]
