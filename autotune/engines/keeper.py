"""The keeper: a small process that is an engine's parent, and leaves nothing of it behind.

In: one line of JSON on stdin (`argv`, `env`, `cwd`, `log`, `grace_s`, `leftovers`, `secrets`), later a line with
seconds of grace that asks for the stop. Out: JSON lines on stdout, `started`, `failed`, `claimed` (shared memory, which
the tuner removes if the keeper can't), `exited`, `stopped`. The end of stdin, which comes when the tuner dies however
it dies, is a request to stop too.

As sub-reaper it inherits every process that the engine's tree orphans, so its descendants are the engine, also those
that left the engine's process group. It imports the standard library only and is started by path with `-I -S`: it is up
in tens of milliseconds and nothing in the tuner's directory or environment can shadow what it imports. Environment
values, secrets among them, come through the pipe.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
SHM = Path("/dev/shm")  # noqa: S108  the kernel's own place for POSIX shared memory
TICK_S = 1.0  # how often new shared memory is looked for
YOUNG_S = 10.0  # a new shared-memory name that none of ours has mapped after this is someone else's
KILL_DEADLINE_S = 20.0  # a process in an uninterruptible driver call outlives SIGKILL; then it is reported as left
POLL_S = 0.05
ORPHAN_GRACE_S = 2.0  # what the engine's children get once the engine itself has ended


def _libc_prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl failed")


def report(event: str, **fields: object) -> None:
    """Write one event; a tuner that is gone is no reason to stop cleaning up."""
    with contextlib.suppress(OSError):
        os.write(1, (json.dumps({"event": event, **fields}) + "\n").encode())


# --- processes --------------------------------------------------------------------------------------------------------


def parents() -> dict[int, tuple[int, str]]:
    """Parent and state letter of every process."""
    found: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                stat = (entry / "stat").read_text(errors="replace")
                state, parent = stat.rpartition(")")[2].split()[:2]  # the name in parentheses may hold anything
                found[int(entry.name)] = (int(parent), state)
    return found


def descendants(root: int) -> list[int]:
    """Living processes below `root`; zombies, which only wait to be reaped, don't count."""
    table = parents()
    below = {root}
    while grown := {pid for pid, (parent, _) in table.items() if parent in below} - below:
        below |= grown
    return [pid for pid in below - {root} if table[pid][1] not in "ZX"]


def signal_all(pids: list[int], number: int) -> None:
    """Send a signal to each process that is still there."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)


# --- shared memory ----------------------------------------------------------------------------------------------------


def mapped(pids: list[int]) -> set[str]:
    """Names in /dev/shm that any of `pids` has mapped or open.

    What is mapped is told by its inode: glibc makes a semaphore under another name than the one that stays.
    """
    prefix = f"{SHM}/"
    inodes: set[int] = set()
    names: set[str] = set()
    for pid in pids:
        with contextlib.suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
            inodes |= {int(line.split(maxsplit=5)[4]) for line in lines if prefix in line}
            names |= {link.removeprefix(prefix) for link in open_files(pid) if link.startswith(prefix)}
    names = {name for name in names if not name.endswith(" (deleted)")}
    return names | {name for name, inode in listed().items() if inode in inodes}


def listed() -> dict[str, int]:
    """Every name in /dev/shm with its inode."""
    try:
        with os.scandir(SHM) as entries:
            return {entry.name: entry.inode() for entry in entries}
    except OSError:
        return {}


def open_files(pid: int) -> Iterator[str]:
    """What each descriptor of a process leads to; one that is closed meanwhile hides none of the others."""
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            yield str(descriptor.readlink())


class SharedMemory:
    """Which names in /dev/shm the engine's processes made: new since the launch, and seen mapped by one of them."""

    def __init__(self) -> None:
        self.before = listed().keys()
        self.first_seen: dict[str, float] = {}
        self.ours: dict[str, int] = {}

    def look(self, pids: list[int]) -> None:
        """Claim new names that `pids` hold. Cheap unless a name has just appeared."""
        now = time.monotonic()
        new = listed().keys() - self.before - self.ours.keys()
        ages = [now - self.first_seen.setdefault(name, now) for name in new]
        if any(age < YOUNG_S for age in ages):
            self.claim(pids)

    def claim(self, pids: list[int]) -> None:
        """Remember the new names that `pids` hold now, each with its inode, and tell the tuner."""
        known = len(self.ours)
        for name in mapped(pids) - self.before:
            with contextlib.suppress(OSError):
                self.ours.setdefault(name, (SHM / name).stat().st_ino)
        if len(self.ours) > known:
            report("claimed", memory=self.ours)


def remove_memory(claimed: dict[str, int]) -> list[str]:
    """Remove of the names in /dev/shm those that are still the file of that inode; return the paths."""
    removed = []
    for name, inode in sorted(claimed.items()):
        path = SHM / name
        with contextlib.suppress(OSError):
            if path.stat().st_ino == inode:
                path.unlink()
                removed.append(str(path))
    return removed


def named_in_log(log: str, patterns: list[str]) -> list[Path]:
    """Files that the engine itself named in its log, by patterns whose first group is the path."""
    if not patterns:
        return []
    text = Path(log).read_text(errors="replace")
    return sorted({Path(match.group(1)) for pattern in patterns for match in re.finditer(pattern, text)})


def remove_named(paths: list[Path]) -> list[str]:
    """Remove the regular files among `paths` that are ours; return the paths."""
    removed = []
    for path in paths:
        with contextlib.suppress(OSError):
            if path.is_file() and not path.is_symlink() and path.stat().st_uid == os.getuid():
                path.unlink()
                removed.append(str(path))
    return removed


def hide(log: str, secrets: list[str]) -> None:
    """Take secrets out of a log that nobody writes to any more: engines print their arguments and environment."""
    path, found = Path(log), False
    with contextlib.suppress(OSError):
        text = path.read_bytes()
        for secret in map(str.encode, secrets):
            found |= secret in text
            text = text.replace(secret, b"<redacted>")
        if found:
            path.write_bytes(text)


# --- the keeper -------------------------------------------------------------------------------------------------------


class Orders:
    """The tuner's end of the pipe."""

    def __init__(self, wake: int, grace_s: float) -> None:
        self._wake = wake
        self._default_s = grace_s
        self._pending = b""

    def wait(self, seconds: float) -> float | None:
        """Return the grace once a stop is asked for or the tuner is gone; None after `seconds` or a child's end."""
        ready, _, _ = select.select([0, self._wake], [], [], seconds)
        if self._wake in ready:
            os.read(self._wake, 4096)
        if 0 not in ready:
            return None
        chunk = os.read(0, 4096)
        self._pending += chunk
        if not chunk:
            return self._default_s
        return float(self._pending) if b"\n" in self._pending else None


class Keeper:
    """One engine from start to the proof that nothing is left."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.exit_code: int | None = None
        self.memory = SharedMemory()
        self.pid = self._start()

    def _start(self) -> int:
        with Path(self.plan["log"]).open("ab", buffering=0) as log:
            child = subprocess.Popen(
                self.plan["argv"],
                env=self.plan["env"],
                cwd=self.plan["cwd"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=lambda: _libc_prctl(PR_SET_PDEATHSIG, signal.SIGKILL),  # noqa: PLW1509  one thread here
            )
        child.returncode = 0  # this class reaps; Popen must neither wait nor warn
        return child.pid

    def reap(self) -> None:
        """Collect every child that ended; report the engine's own exit."""
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    return
                if pid == self.pid:
                    self.exit_code = os.waitstatus_to_exitcode(status)
                    report("exited", code=self.exit_code)

    def alive(self) -> list[int]:
        """The engine's living processes; the dead are collected on the way.

        A scan of /proc is no snapshot: a child whose parent dies meanwhile can be missed, so "none" is looked at twice.
        """
        for _ in range(2):
            found = descendants(os.getpid())
            self.reap()
            if found:
                return found
        return []

    def watch(self, orders: Orders) -> float:
        """Return the grace that was asked for, once it is or the tuner is gone."""
        while (grace_s := orders.wait(TICK_S)) is None:
            self.memory.look(self.alive())
        return grace_s

    def ask_to_end(self, grace_s: float) -> list[int]:
        """SIGTERM to the group; return who is left after the grace, which shrinks once the engine itself has ended."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGTERM)
        deadline = time.monotonic() + grace_s
        ended = False
        while (alive := self.alive()) and time.monotonic() < deadline:
            if self.exit_code is not None and not ended:
                ended = True
                deadline = min(deadline, time.monotonic() + ORPHAN_GRACE_S)
            time.sleep(POLL_S)
        return alive

    def kill(self) -> list[int]:
        """SIGKILL to everything below, again at each look since a dying tree may still fork; return who is left."""
        deadline = time.monotonic() + KILL_DEADLINE_S
        while (alive := self.alive()) and time.monotonic() < deadline:
            signal_all(alive, signal.SIGKILL)
            time.sleep(POLL_S)
        return alive

    def stop(self, grace_s: float) -> None:
        """SIGTERM to the group, grace, SIGKILL to everything below, then remove what the tree left in memory."""
        began = time.monotonic()
        how = "exited"
        alive = self.alive()
        self.memory.claim(alive)
        if alive and grace_s > 0:
            how = "term"
            alive = self.ask_to_end(grace_s)
        if alive:
            how = "kill"
            self.memory.claim(alive)
            alive = self.kill()
        removed = remove_memory(self.memory.ours) + remove_named(named_in_log(self.plan["log"], self.plan["leftovers"]))
        hide(self.plan["log"], self.plan.get("secrets", []))
        report("stopped", left=len(alive), how=how, stop_s=time.monotonic() - began, removed=removed)


def wake_pipe() -> int:
    """A descriptor that becomes readable when a child ends."""
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
    return reader


def ignore_signals() -> None:
    """Only the pipe ends a keeper. Handlers, not SIG_IGN: an ignored signal would stay ignored in the engine."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD):
        signal.signal(number, lambda *_: None)


def read_plan() -> dict[str, Any]:
    """The first line of stdin, read byte-exactly so that later lines stay in the pipe for `select`."""
    line = bytearray()
    while not line.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit("the tuner left before it gave a plan")
        line += byte
    plan: dict[str, Any] = json.loads(line)
    return plan


def main() -> None:
    """Keep one engine."""
    wake = wake_pipe()
    ignore_signals()
    plan = read_plan()
    _libc_prctl(PR_SET_CHILD_SUBREAPER, 1)
    try:
        keeper = Keeper(plan)
    except OSError as error:
        report("failed", error=str(error))
        return
    report("started", pid=keeper.pid)
    keeper.stop(keeper.watch(Orders(wake, float(plan["grace_s"]))))


if __name__ == "__main__":
    main()
