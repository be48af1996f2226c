"""Waiting until a launched engine is ready, and the proof that the server which answers is the one just started."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from autotune.engines.net import get
from autotune.engines.process import EngineProcess

POLL_S = 0.2
HEALTH_TIMEOUT_S = 2.0


class Readiness(StrEnum):
    READY = "ready"
    EXITED = "exited"
    TIMEOUT = "timeout"
    FOREIGN = "foreign"  # another program's server answers on the port
    CRASHED = "crashed"  # the log says so, though the process lives on


CRASHED_PHASE = "crashed"
"""The phase of a mark after which no engine gets ready, whatever its `/health` says for ever."""


@dataclass(slots=True)
class PhaseWatch:
    """Follows a growing log and tells the phase of start-up it has reached; `marks` are (text, phase) in any order."""

    log: Path
    marks: Sequence[tuple[str, str]]
    on_phase: Callable[[str], None]
    _position: int = field(default=0, init=False)
    _phase: str = field(default="", init=False)

    @property
    def crashed(self) -> bool:
        """Whether the log has come to a mark of CRASHED_PHASE."""
        return self._phase == CRASHED_PHASE

    def look(self) -> None:
        """Read the lines that are new and report the last phase that they name."""
        with self.log.open("rb") as file:
            file.seek(self._position)
            lines = file.read()
        lines = lines[: lines.rfind(b"\n") + 1]  # the rest of a line that is being written comes with the next look
        self._position += len(lines)
        text = lines.decode(errors="replace")
        found = [(phase == CRASHED_PHASE, text.rfind(mark), phase) for mark, phase in self.marks if mark in text]
        if found:
            self.tell(max(found)[2])  # whatever the log says after a crash

    def tell(self, phase: str) -> None:
        """Report a phase unless it is the current one."""
        if phase != self._phase:
            self._phase = phase
            self.on_phase(phase)


def wait_ready(
    process: EngineProcess, port: int, *, timeout_s: float, watch: PhaseWatch, path: str = "/health"
) -> Readiness:
    """Wait until `path` answers 200 from the engine that was launched, the engine ends, or time is up.

    A port can be bound long before it listens, and 503 means "not yet": both are waited for.
    """
    watch.tell("starting")
    deadline = time.monotonic() + timeout_s
    while process.exit_code() is None:
        watch.look()
        if watch.crashed:
            return Readiness.CRASHED
        answer = get(port, path, timeout_s=HEALTH_TIMEOUT_S)
        if answer is not None and not process.serves(port):
            # It may have ended between its answer and the look at its sockets.
            return Readiness.EXITED if process.exit_code() is not None else Readiness.FOREIGN
        if answer is not None and answer[0] == 200:
            watch.tell("ready")
            return Readiness.READY
        if time.monotonic() > deadline:
            return Readiness.TIMEOUT
        process.wait(POLL_S)
    return Readiness.EXITED
