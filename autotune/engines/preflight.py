"""An engine's own checks without a launch: a child in its Python imports it once, then answers in milliseconds.

Nothing here may harm a study: a child that hangs or dies is replaced a few times, one that can't import the engine or
finds its configuration elsewhere is given up with a warning, and every doubtful answer counts as none.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

START_TIMEOUT_S = 180.0  # the import takes 6-11 s from a warm disk, minutes from a cold one on a network
ANSWER_TIMEOUT_S = 20.0  # 4 ms as a rule
FIRST_ANSWER_FACTOR = 6  # it fetches config.json, and inspects the model's class in a process of its own
RESTARTS = 2
ENV = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}  # looking whether there is a GPU shall not make a context on it


class ChildLostError(Exception):
    """The child ended, or did not answer in time."""


@contextmanager
def asked_child(
    child: Sequence[str],
    engine: str,
    *,
    env: Mapping[str, str],
    redacted: Sequence[str] = (),
    tell: Callable[[str], None],
    answer_timeout_s: float = ANSWER_TIMEOUT_S,
    after: Callable[[], object] = lambda: None,
) -> Iterator[Asked]:
    """Start asking an engine: `child` is the command line that runs its preflight child in its Python, `env` all of its
    environment.

    `redacted` are secrets that no answer may hold. `after` is called whenever a child has been killed: in a container
    it outlives the client that was its process here.
    """
    asked = Asked(
        child=child,
        engine=engine,
        env=env,
        redacted=redacted,
        tell=tell,
        answer_timeout_s=answer_timeout_s,
        after=after,
    )
    try:
        asked.start()
        yield asked
    finally:
        asked.close()


@dataclass(slots=True, kw_only=True)
class Asked:
    """Made by `asked_child`."""

    child: Sequence[str]
    engine: str
    env: Mapping[str, str]
    redacted: Sequence[str]
    tell: Callable[[str], None]
    answer_timeout_s: float
    after: Callable[[], object]
    _child: Child | None = None
    _lost: int = 0

    def start(self) -> None:
        """Start a child; it imports the engine while the caller goes on."""
        try:
            self._child = Child(self.child, self.engine, {**ENV, **self.env})
        except OSError as error:
            self._give_up(f"{self.child[0]} can't be started: {error}")

    def close(self) -> None:
        """End the child; a second call does nothing."""
        if self._child is not None:
            self._child.close()
            self._child = None
            self.after()

    def ask(self, question: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Return the event that answers, `resolved`, `refused` or `odd` (with a clean `error`); None when it can't be
        asked."""
        if self._child is None:
            return None
        try:
            answer = self._child.ask(question, self.answer_timeout_s)
        except ChildLostError as lost:
            self._replace(str(lost))
            return None
        if answer["event"] == "failed":
            self._give_up(self._clean(answer["error"]))
            return None
        if answer.get("cuda"):
            self._give_up("it took GPU memory, which belongs to the engine")
            return None
        return {**answer, "error": self._clean(answer.get("error", ""))}

    def _clean(self, text: str) -> str:
        for secret in self.redacted:
            text = text.replace(secret, "[redacted]")
        return text

    def _replace(self, why: str) -> None:
        tail = self._child.errors_tail() if self._child else ""
        self.close()
        self._lost += 1
        if self._lost > RESTARTS:
            self._give_up(
                f"{self._clean(why)}, {self._lost} times" + (f"; it said: {self._clean(tail)}" if tail else "")
            )
        else:
            self.start()

    def _give_up(self, why: str) -> None:
        self.close()
        lines = [line.strip() for line in why.splitlines() if line.strip()]
        cause = lines[-1] if lines else "no reason given"
        self.tell(
            f"candidates are not checked with {self.engine}'s own configuration before they are launched: {cause}"
        )


class Child:
    """A running child, in a process group of its own."""

    def __init__(self, argv: Sequence[str], engine: str, env: Mapping[str, str]) -> None:
        self._engine = engine
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  closed with the child
        self._pending = b""
        self._started_s = time.monotonic()
        self._ready = False
        self._answers = 0
        try:
            self._process = subprocess.Popen(
                list(argv),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                env=dict(env),
                start_new_session=True,
            )
        except OSError:
            self._errors.close()
            raise

    def ask(self, question: Mapping[str, Any], timeout_s: float) -> Mapping[str, Any]:
        """Return the answer, or the event `failed` of a child that could not start. Raises ChildLostError."""
        if not self._ready:
            event = self._event(self._started_s + START_TIMEOUT_S)
            if event["event"] != "ready":
                return event
            self._ready = True
        self._send(json.dumps(question).encode() + b"\n")
        allowed_s = timeout_s * (1 if self._answers else FIRST_ANSWER_FACTOR)
        answer = self._event(time.monotonic() + allowed_s)
        self._answers += 1
        return answer

    def _send(self, line: bytes) -> None:
        assert self._process.stdin is not None  # noqa: S101  opened as a pipe
        try:
            self._process.stdin.write(line)
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildLostError(f"the process that asks {self._engine} ended") from None

    def _event(self, deadline_s: float) -> Mapping[str, Any]:
        """Return the next line that is an event; start-up hooks of a Python may print anything before."""
        while True:
            while b"\n" in self._pending:
                line, _, self._pending = self._pending.partition(b"\n")
                with contextlib.suppress(ValueError):
                    event = json.loads(line)
                    if isinstance(event, dict) and "event" in event:
                        return event
            self._read(deadline_s)

    def _read(self, deadline_s: float) -> None:
        out = self._process.stdout
        assert out is not None  # noqa: S101  opened as a pipe
        if not select.select([out], [], [], max(0.0, deadline_s - time.monotonic()))[0]:
            raise ChildLostError(f"the process that asks {self._engine} did not answer in time")
        chunk = os.read(out.fileno(), 65536)
        if not chunk:
            raise ChildLostError(f"the process that asks {self._engine} ended")
        self._pending += chunk

    def errors_tail(self) -> str:
        """Return the last line that the child wrote to stderr."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - 4096))
        lines = self._errors.read().decode(errors="replace").split("\n")
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def close(self) -> None:
        """Kill the child and what it started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        with contextlib.suppress(BrokenPipeError):
            self._process.__exit__(None, None, None)  # closes the pipes and waits
        self._errors.close()
