"""Waiting until a launched engine is ready, and the proof that the server which answers is the one just started."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from autotune.engines.net import get, listens
from autotune.engines.process import EngineProcess

POLL_S = 0.2
HEALTH_TIMEOUT_S = 2.0


class Readiness(StrEnum):
    READY = "ready"
    EXITED = "exited"
    TIMEOUT = "timeout"
    FOREIGN = "foreign"  # another program's server answers on the port


@dataclass(slots=True)
class PhaseWatch:
    """Follows a growing log and tells the phase of start-up it has reached; `marks` are (text, phase) in any order."""

    log: Path
    marks: Sequence[tuple[str, str]]
    on_phase: Callable[[str], None]
    _position: int = field(default=0, init=False)
    _phase: str = field(default="", init=False)

    def look(self) -> None:
        """Read what is new and report the last phase that it names."""
        with self.log.open("rb") as file:
            file.seek(self._position)
            text = file.read().decode(errors="replace")
            self._position = file.tell()
        found = [(text.rfind(mark), phase) for mark, phase in self.marks if mark in text]
        if found:
            self.tell(max(found)[1])

    def tell(self, phase: str) -> None:
        """Report a phase unless it is the current one."""
        if phase != self._phase:
            self._phase = phase
            self.on_phase(phase)


def wait_ready(process: EngineProcess, port: int, *, timeout_s: float, watch: PhaseWatch) -> Readiness:
    """Wait until `/health` answers 200 from a process of the engine's own tree, the engine ends, or time is up.

    A port can be bound long before it listens, and 503 means "not yet": both are waited for.
    """
    watch.tell("starting")
    deadline = time.monotonic() + timeout_s
    while process.exit_code() is None:
        watch.look()
        answer = get(port, "/health", timeout_s=HEALTH_TIMEOUT_S)
        if answer is not None and not listens(process.tree(), port):
            # It may have ended between its answer and the look at its sockets.
            return Readiness.EXITED if process.exit_code() is not None else Readiness.FOREIGN
        if answer is not None and answer[0] == 200:
            watch.tell("ready")
            return Readiness.READY
        if time.monotonic() > deadline:
            return Readiness.TIMEOUT
        process.wait(POLL_S)
    return Readiness.EXITED
