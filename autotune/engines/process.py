"""The tuner's end of a keeper: start an engine's process tree, watch it, and have it stopped for certain."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import psutil

from autotune.engines import keeper as keeper_module
from autotune.engines.net import port_free
from autotune.errors import EnvironmentFault
from autotune.records.trial import Cleanup

GRACE_S = 10.0  # a ready vLLM ends within 1-3 s of SIGTERM
STARTUP_GRACE_S = 1.0  # vLLM loses SIGTERM while it starts (3 of 3 tries), so waiting longer is waiting for nothing
KEEPER_START_S = 20.0
REPORT_SLACK_S = 10.0


class EngineProcess:
    """A running keeper and its engine. Made by `engine_process`, which also stops it."""

    def __init__(self, keeper: subprocess.Popen[bytes], port: int | None) -> None:
        self.keeper = keeper
        self.port = port
        self.pid: int | None = None
        self.cleanup: Cleanup | None = None
        self.grace_s = STARTUP_GRACE_S
        self.error: str | None = None
        self._exit_code: int | None = None
        self._stopped: dict[str, Any] | None = None
        self._seen: set[psutil.Process] = set()
        self._pending = b""

    # --- events -------------------------------------------------------------------------------------------------------

    def wait(self, seconds: float) -> None:
        """Return when the keeper has something to tell, or after `seconds`."""
        ready, _, _ = select.select([self._out], [], [], max(seconds, 0.0))
        if ready:
            self._read()

    @property
    def _out(self) -> IO[bytes]:
        assert self.keeper.stdout is not None  # noqa: S101  opened as a pipe
        return self.keeper.stdout

    def _read(self) -> None:
        chunk = os.read(self._out.fileno(), 65536)
        if not chunk:  # the keeper is gone: without its report there is no exit code to know
            if self._exit_code is None:
                self._exit_code = -signal.SIGKILL
            if self._stopped is None:
                self._stopped = {}
            return
        *lines, self._pending = (self._pending + chunk).split(b"\n")
        for line in lines:
            self._take(json.loads(line))

    def _take(self, event: Mapping[str, Any]) -> None:
        match event["event"]:
            case "started":
                self.pid = event["pid"]
            case "failed":
                self.error = event["error"]
            case "exited":
                self._exit_code = event["code"]
            case "stopped":
                self._stopped = dict(event)

    def exit_code(self) -> int | None:
        """Exit code of the engine's own process (negative: a signal); None while it is alive."""
        if self._exit_code is None and self.cleanup is None:
            self.wait(0)
        return self._exit_code

    # --- start --------------------------------------------------------------------------------------------------------

    def wait_started(self) -> None:
        """Wait until the keeper has started the engine or could not (`error`). Raises EnvironmentFault on silence."""
        deadline = time.monotonic() + KEEPER_START_S
        while self.pid is None and self.error is None:
            if time.monotonic() > deadline or self._stopped is not None:
                raise EnvironmentFault("the process that keeps the engine did not start", "is the machine overloaded?")
            self.wait(deadline - time.monotonic())

    def tree(self) -> list[psutil.Process]:
        """Every process that belongs to the engine now."""
        try:
            found = psutil.Process(self.keeper.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(found)
        return found

    # --- stop ---------------------------------------------------------------------------------------------------------

    def stop(self) -> Cleanup:
        """Run the stop ladder and return its proof; a second call returns the first's."""
        if self.cleanup is None:
            self._ask_to_stop()
            self.cleanup = self._proof()
        return self.cleanup

    def _ask_to_stop(self) -> None:
        assert self.keeper.stdin is not None  # noqa: S101  opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self.keeper.stdin.write(f"{self.grace_s}\n".encode())
            self.keeper.stdin.close()
        deadline = time.monotonic() + self.grace_s + keeper_module.KILL_DEADLINE_S + REPORT_SLACK_S
        while self._stopped is None and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        self.keeper.kill()  # it has ended by itself unless it hangs
        self.keeper.wait()
        self._out.close()

    def _proof(self) -> Cleanup:
        told = self._stopped or {}
        left = told["left"] if "left" in told else self._kill_without_keeper()
        return Cleanup(
            left_processes=left,
            port_free=self.port is None or port_free(self.port),
            shm_removed=tuple(told.get("removed", ())),
            stop_s=told.get("stop_s"),
            how=told.get("how", "not started" if self.pid is None else "keeper lost"),
        )

    def _kill_without_keeper(self) -> int:
        """The keeper was killed: kill the engine's session and whatever else was seen of its tree; count survivors."""
        if self.pid is None:
            return 0
        mates = {process for process in psutil.process_iter() if _session(process.pid) == self.pid} | self._seen
        for process in mates:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return len(psutil.wait_procs(mates, timeout=keeper_module.KILL_DEADLINE_S)[1])


def _session(pid: int) -> int | None:
    try:
        return os.getsid(pid)
    except ProcessLookupError:
        return None


@contextmanager
def engine_process(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    port: int | None = None,
    cwd: Path | None = None,
    leftovers: Sequence[str] = (),
) -> Iterator[EngineProcess]:
    """Run `argv` under a keeper with exactly `env`, its output appended to `log`; stop it when the context closes.

    `leftovers` are patterns whose first group is the path of a file that the engine names in its log and never removes.
    The context yields an EngineProcess that has started, or whose `error` says why it could not.
    """
    plan = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": str(cwd or _working_directory()),
        "log": str(log.absolute()),  # the keeper has another working directory
        "grace_s": GRACE_S,
        "leftovers": list(leftovers),
    }
    process = EngineProcess(_start_keeper(), port)
    try:
        _give_plan(process.keeper, plan)
        process.wait_started()
        yield process
    finally:
        process.stop()


def _working_directory() -> Path:
    try:
        return Path.cwd()
    except FileNotFoundError:
        raise EnvironmentFault(
            "the folder in which autotune was started has been deleted", "start it in one that exists, with --resume"
        ) from None


def _start_keeper() -> subprocess.Popen[bytes]:
    if not sys.platform.startswith("linux"):
        raise EnvironmentFault(f"engines can be launched on Linux only, this is {sys.platform}")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", keeper_module.__file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        start_new_session=True,
    )


def _give_plan(keeper: subprocess.Popen[bytes], plan: Mapping[str, Any]) -> None:
    assert keeper.stdin is not None  # noqa: S101  opened as a pipe
    keeper.stdin.write(json.dumps(plan).encode() + b"\n")
    keeper.stdin.flush()
