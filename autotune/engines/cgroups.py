"""A cgroup for each engine where one can be had: it holds what leaves every group and session, and outlives a keeper.

The keeper is put in before it starts the engine, so that all that comes of it is in there too. Where the tuner may make
none (no cgroup v2, or a session that is not delegated to its user), the keeper's own means must do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

KILL_DEADLINE_S = 20.0  # a process in an uninterruptible driver call outlives SIGKILL
POLL_S = 0.05
PREFIX = "autotune"


@dataclass(frozen=True, slots=True)
class Cgroup:
    """A folder in the kernel's cgroup file system."""

    path: Path

    def processes(self) -> list[int]:
        """Everything in it that lives; [] when it is gone."""
        try:
            return [int(line) for line in (self.path / "cgroup.procs").read_text().split()]
        except OSError:
            return []

    def kill(self) -> int:
        """Kill everything in it, and return how many outlive that."""
        deadline = time.monotonic() + KILL_DEADLINE_S
        while (alive := self.processes()) and time.monotonic() < deadline:
            for pid in alive:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_S)
        return len(alive)

    def remove(self) -> None:
        """Remove the folder, unless something is left in it."""
        with contextlib.suppress(OSError):
            self.path.rmdir()


def cgroup_for(keeper: int) -> Cgroup | None:
    """Make a cgroup and put a keeper into it; None where the kernel or its settings don't let us.

    What a tuner left that was killed together with its keeper is ended first; a keeper that lives is still clearing up.
    """
    parent = _own()
    if parent is None:
        return None
    for left in parent.glob(f"{PREFIX}-*"):
        if _is_dead(left.name):
            Cgroup(left).kill()
            Cgroup(left).remove()
    group = Cgroup(parent / "-".join((PREFIX, _namespace(), *_identity(os.getpid()), *_identity(keeper))))
    try:
        group.path.mkdir()
        (group.path / "cgroup.procs").write_text(str(keeper))
    except OSError:
        group.remove()
        return None
    return group


class OomKills:
    """How many processes the kernel's OOM killer ended since this was made, where it counts them most narrowly.

    That is the engine's own cgroup, else the tuner's (v2, then v1), in which no neighbour is; else all of the machine.
    A file that can't be read any more counts none. User-space killers (earlyoom, systemd-oomd) are in no such count.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        self.place = next((place for place in places if _oom_kills(place) is not None), None)
        self._before = self._now()

    def since(self) -> int:
        """Processes ended since then."""
        return max(0, self._now() - self._before)

    def _now(self) -> int:
        return 0 if self.place is None else _oom_kills(self.place) or 0


def oom_places(group: Cgroup | None) -> tuple[Path, ...]:
    """Files in which the kernel counts what its OOM killer ended of the processes in `group`, the narrowest first."""
    own, own_v1 = _own(), _own_v1_memory()
    return (
        *([group.path / "memory.events"] if group else []),
        *([own / "memory.events"] if own else []),
        *([own_v1 / "memory.oom_control"] if own_v1 else []),
        Path("/proc/vmstat"),
    )


def _oom_kills(place: Path) -> int | None:
    try:
        found = re.search(r"^oom_kill (\d+)$", place.read_text(), re.MULTILINE)
    except OSError:
        return None
    return int(found.group(1)) if found else None


def _own() -> Path | None:
    """The folder of the cgroup (v2) that this process is in."""
    return _folder("cgroup2", "", lambda names: names == "")


def _own_v1_memory() -> Path | None:
    """The folder of the memory cgroup (v1) that this process is in."""
    return _folder("cgroup", "memory", lambda names: "memory" in names.split(","))


def _folder(kind: str, option: str, ours: Callable[[str], bool]) -> Path | None:
    """The folder of this process in the hierarchy that is mounted as `kind` with `option`, and whose controllers are
    `ours`."""
    try:
        mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
        lines = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    except OSError:
        return None
    mount = next((m[1] for m in mounts if m[2] == kind and (not option or option in m[3].split(","))), None)
    inside = next((path for _, names, path in lines if ours(names)), None)
    return None if mount is None or inside is None else Path(mount, inside.lstrip("/"))


def _identity(pid: int) -> tuple[str, str]:
    """A process for as long as the machine runs: pid, start."""
    return str(pid), _started(pid) or ""


def _is_dead(name: str) -> bool:
    """Whether neither the tuner nor the keeper of a cgroup runs any more; those of another pid namespace can't be told.

    A keeper outlives a tuner that was killed: to end it too would leave the shared memory that it is about to remove.
    """
    _, namespace, *identities = [*name.split("-"), *[""] * 6][:6]
    pairs = list(zip(identities[::2], identities[1::2], strict=True))
    return namespace == _namespace() and all(pid.isdigit() and _started(int(pid)) != began for pid, began in pairs)


def _namespace() -> str:
    return str(Path("/proc/self/ns/pid").stat().st_ino)


def _started(pid: int) -> str | None:
    """Start of a process in clock ticks since boot, None when none runs: a pid alone may be used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    state, *fields = stat.rpartition(")")[2].split()
    return None if state in "ZX" else fields[18]
