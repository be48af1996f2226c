"""Where a cgroup can be had, nothing outlives it: not what a lost keeper never told of, nor what a dead tuner left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from autotune.engines.cgroups import Cgroup, OomKills, cgroup_for, oom_places
from autotune.engines.process import engine_process
from tests.engines.children import gone, python, wait_for_lines, wait_until

pytestmark = pytest.mark.integration

HIDES = """
import os, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        time.sleep(600)
    os._exit(0)
os.wait()
time.sleep(600)
"""
"""A grandchild in a session of its own, whose parent has ended."""

TUNER = """
import os, sys
from pathlib import Path
from autotune.engines.process import engine_process
with engine_process([sys.executable, "-c", sys.argv[1]], env=os.environ, log=Path(sys.argv[2])) as process:
    print(process.keeper.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """A cgroup with a sleeping process in it; skips where none can be had."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as sleeping:
        found = cgroup_for(sleeping.pid)
        try:
            if found is None:
                pytest.skip("no cgroup v2 that this user may write to")
            yield found
        finally:
            sleeping.kill()


def test_what_is_in_it_is_killed_and_then_it_goes(group: Cgroup) -> None:
    (pid,) = group.processes()
    assert group.kill() == 0
    assert gone(pid)
    wait_until(lambda: group.processes() == [], "an empty cgroup")
    group.remove()
    assert not group.path.exists()


def test_what_a_lost_keeper_never_told_of_is_killed(group: Cgroup, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with engine_process(python(HIDES), env=os.environ, log=log) as process:
        hidden = int(wait_for_lines(log)[0])
        process.keeper.kill()
    assert gone(hidden)
    assert process.cleanup is not None
    assert process.cleanup.left_processes == 0
    assert process.cgroup is not None
    assert not process.cgroup.path.exists()


def test_what_a_tuner_left_that_died_with_its_keeper_is_ended_by_the_next(group: Cgroup, tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    with subprocess.Popen(
        [*python(TUNER), HIDES, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tuner:
        assert tuner.stdout is not None
        keeper = int(tuner.stdout.readline())
        hidden = int(wait_for_lines(log)[0])
        os.kill(keeper, signal.SIGSTOP)  # both must be gone at once, or one of them cleans up
        tuner.kill()
        os.kill(keeper, signal.SIGKILL)
    wait_until(lambda: gone(keeper), "the keeper's end")
    assert not gone(hidden)
    with engine_process(python("1"), env=os.environ, log=tmp_path / "next.log"):
        assert gone(hidden)
    assert group.processes() != []  # that of a living tuner is let alone


def test_a_keeper_that_clears_up_after_a_dead_tuner_is_let_alone(group: Cgroup, tmp_path: Path) -> None:
    log, left = tmp_path / "engine.log", group.processes()
    with subprocess.Popen(
        [*python(TUNER), HIDES, str(log)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as tuner:
        assert tuner.stdout is not None
        keeper = psutil.Process(int(tuner.stdout.readline()))
        hidden = int(wait_for_lines(log)[0])
        keeper.suspend()  # so that it is not ready before the next launch
        tuner.kill()
    with engine_process(python("1"), env=os.environ, log=tmp_path / "next.log"):
        assert keeper.is_running()
        assert not gone(hidden)
        keeper.resume()
    wait_until(lambda: gone(hidden) and gone(keeper.pid), "the end of what the keeper keeps")
    assert group.processes() == left


# --- the kernel's OOM killer ------------------------------------------------------------------------------------------

EATS = """
import os, sys
from pathlib import Path
Path(sys.argv[1], "cgroup.procs").write_text(str(os.getpid()))
bytearray(2**30)
"""


def test_the_narrowest_place_that_counts_is_asked(tmp_path: Path) -> None:
    events, vmstat = tmp_path / "memory.events", tmp_path / "vmstat"
    vmstat.write_text("oom_kill 7\n")
    assert OomKills((events, vmstat)).place == vmstat
    events.write_text("low 0\noom 3\noom_kill 2\noom_group_kill 0\n")
    kills = OomKills((events, vmstat))
    vmstat.write_text("oom_kill 8\n")
    assert (kills.place, kills.since()) == (events, 0)
    events.write_text("low 0\noom 4\noom_kill 3\n")
    assert kills.since() == 1
    events.unlink()
    assert kills.since() == 0


def test_every_machine_counts_somewhere() -> None:
    kills = OomKills(oom_places(None))
    assert kills.place is not None
    assert kills.since() == 0


def test_a_kill_by_the_kernel_is_counted_and_one_by_anybody_else_is_not() -> None:
    folder = memory_limited(64 * 2**20)
    try:
        kills = OomKills((folder / "memory.events", folder / "memory.oom_control"))
        with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as other:
            (folder / "cgroup.procs").write_text(str(other.pid))
            other.kill()
        assert (other.returncode, kills.since()) == (-signal.SIGKILL, 0)
        ate = subprocess.run([sys.executable, "-c", EATS, str(folder)], check=False)
        assert (ate.returncode, kills.since()) == (-signal.SIGKILL, 1)
    finally:
        folder.rmdir()


def memory_limited(size_bytes: int) -> Path:
    """A cgroup with a limit of memory; skips where none can be had."""
    place = next(place for place in oom_places(None) if place.exists())
    if place.parent == Path("/proc"):
        pytest.skip("no cgroup that counts memory")
    folder = place.parent / f"autotune-test-{os.getpid()}"
    try:
        folder.mkdir(exist_ok=True)
        limit = next(folder / name for name in ("memory.max", "memory.limit_in_bytes") if (folder / name).exists())
        limit.write_text(str(size_bytes))
    except (OSError, StopIteration):
        pytest.skip("no cgroup in which this user may limit memory")
    return folder
