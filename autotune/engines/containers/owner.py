"""Whose container it is: a label names the tuner's process, which tells what a dead one left from what is in use."""

from __future__ import annotations

import os
import socket
from pathlib import Path

OURS = "autotune."  # what every label of ours begins with
STUDY = f"{OURS}study"
TRIAL = f"{OURS}trial"
OWNER = f"{OURS}owner"
LAUNCH = f"{OURS}launch"  # unique: finds the container even where its id never reached anybody


def owner() -> str:
    """Name this process for as long as machines and clocks exist: user, host, boot, pid namespace, pid, start."""
    return "/".join((*_machine(), str(os.getpid()), _started(os.getpid()) or ""))


def is_dead(token: str) -> bool:
    """True when the owner certainly no longer runs; one of another machine, user or namespace can't be told."""
    try:
        user, host, boot, namespace, pid, started = token.split("/")
    except ValueError:
        return False
    ours = _machine()
    if (user, host) != ours[:2]:
        return False
    if boot != ours[2]:
        return True
    return namespace == ours[3] and _started(int(pid) if pid.isdigit() else 0) != started


def _machine() -> tuple[str, str, str, str]:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = str(Path("/proc/self/ns/pid").readlink())
    return str(os.getuid()), socket.gethostname(), boot, namespace


def _started(pid: int) -> str | None:
    """Start of a process in clock ticks since boot; None when there is none. A pid alone may be used again."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
