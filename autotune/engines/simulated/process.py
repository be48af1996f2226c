"""What the simulated server does as a process: its port, its signals, and what it leaves behind on command."""

from __future__ import annotations

import os
import secrets
import signal
import socket
import time
from pathlib import Path
from types import FrameType

from autotune.engines.simulated import logs
from autotune.engines.simulated.faults import Faults

_SHM = Path("/dev/shm")  # noqa: S108 - where the engine's own shared memory lies
_SHM_BYTES = 1 << 20


class StartupFailure(Exception):
    """The engine does not start: the exception's last line as vLLM would print it."""


def bind(host: str, port: int) -> socket.socket:
    """Bind the port without listening yet, as vLLM does before it loads the model; raises StartupFailure."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
    except OSError as error:
        sock.close()
        raise StartupFailure(f"OSError: [Errno {error.errno}] {error.strerror}") from error
    return sock


def handle_signals_while_starting(faults: Faults) -> None:
    """SIGTERM ends a start-up with exit 1 and vLLM's traceback, unless a fault makes it lost."""
    lost = "ignores_sigterm_starting" in faults or "ignores_sigterm" in faults
    signal.signal(signal.SIGTERM, signal.SIG_IGN if lost else _interrupted)


def _interrupted(_signal: int, _frame: FrameType | None) -> None:
    logs.plain("KeyboardInterrupt: terminated")
    raise SystemExit(1)


def pass_time(wall_s: float) -> None:
    """Let start-up take time."""
    if wall_s > 0:
        time.sleep(wall_s)


def hang() -> None:
    """Never return; signals still end the process."""
    while True:
        signal.pause()


def leave_behind(faults: Faults) -> None:
    """Start the child and write the file that the leak faults leave."""
    if "leaves_children" in faults:
        _leave_child(int(faults.number("leaves_children")))
    if "leaves_shm" in faults:
        _leave_shm()


def _leave_child(seconds: int) -> None:
    """Fork a child into a session of its own, deaf to SIGTERM; its alarm ends it, so that no test leaks for ever."""
    child = os.fork()
    if child:
        logs.write(f"Started engine core process {child}", source="utils.py:120")
        return
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(seconds)
    hang()


def _leave_shm() -> None:
    path = _SHM / f"psm_{secrets.token_hex(4)}"  # the name that Python's multiprocessing gives
    path.write_bytes(bytes(_SHM_BYTES))
    os.open(path, os.O_RDWR)  # never closed: vLLM too holds its segment until it ends
    logs.write(f"Created shared memory {path}", source="shm_broadcast.py:120")
