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
from typing import IO, Any, Protocol

import psutil

from autotune.engines import keeper as keeper_module
from autotune.engines.cgroups import OomKills, cgroup_for, oom_places
from autotune.engines.net import listens, port_free
from autotune.errors import EnvironmentFault
from autotune.records.trial import Cleanup

GRACE_S = 10.0  # a ready vLLM ends within 1-3 s of SIGTERM
STARTUP_GRACE_S = 1.0  # vLLM loses SIGTERM while it starts (3 of 3 tries), so waiting longer is waiting for nothing
KEEPER_START_S = 20.0
REPORT_SLACK_S = 10.0
CONTAINER_SLACK_S = 60.0  # `stop`, `rm` and `ps` of a busy runtime
EXIT_LAG_S = 1.0


class Contained(Protocol):
    """How an engine's container is kept and looked at (`engines.containers.launch.ContainerLaunch`)."""

    @property
    def keeper(self) -> Path:
        """The program that keeps it, in place of keeper.py."""

    @property
    def plan(self) -> Mapping[str, Any]:
        """What that program needs to know besides."""

    @property
    def start_timeout_s(self) -> float:
        """How long making the container may take."""

    def serves(self, container: str, port: int) -> bool:
        """Whether it is the container's server that answers on `port` of this machine."""

    def remove(self) -> int:
        """Remove it without its keeper; how many of it are left."""


class EngineProcess:
    """A running keeper and its engine. Made by `engine_process`, which also stops it.

    `pid` is the engine's own process; of a container its first one, 0 where this machine's kernel doesn't run it.
    """

    def __init__(
        self,
        keeper: subprocess.Popen[bytes],
        plan: Mapping[str, Any],
        port: int | None,
        contained: Contained | None = None,
    ) -> None:
        self.keeper = keeper
        self.plan = plan
        self.port = port
        self.contained = contained
        # Before it is given a plan, thus before there is an engine; a container has one of its runtime's.
        self.cgroup = cgroup_for(keeper.pid) if contained is None else None
        self.oom_kills = OomKills(oom_places(self.cgroup) if contained is None else ())
        self.container: str | None = None
        self.oom_killed = False
        self.error_code: int | None = None
        self.pid: int | None = None
        self.cleanup: Cleanup | None = None
        self.grace_s = STARTUP_GRACE_S
        self.error: str | None = None
        self._exit_code: int | None = None
        self._stopped: dict[str, Any] | None = None
        self.claimed: dict[str, int] = {}
        self._seen: set[psutil.Process] = set()
        self._served = False
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
                self.pid, self.container = event["pid"], event.get("container")
            case "failed":
                self.error, self.error_code = event["error"], event.get("code")
            case "exited":
                self._exit_code, self.oom_killed = event["code"], event.get("oom_killed", False)
            case "claimed":
                self.claimed = event["memory"]
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
        deadline = time.monotonic() + (self.contained.start_timeout_s if self.contained else KEEPER_START_S)
        while self.pid is None and self.error is None:
            if time.monotonic() > deadline or self._stopped is not None:
                raise EnvironmentFault("the process that keeps the engine did not start", "is the machine overloaded?")
            self.wait(deadline - time.monotonic())

    def tree(self) -> list[psutil.Process]:
        """Every process that belongs to the engine now; of a container those that this machine's kernel runs."""
        try:
            if self.contained is not None:
                first = psutil.Process(self.pid or -1) if self.pid else None
                return [first, *first.children(recursive=True)] if first else []
            found = psutil.Process(self.keeper.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []
        self._seen.update(found)
        return found

    def serves(self, port: int) -> bool:
        """Whether the server that answers on `port` is this engine's, and not a stranger's."""
        if self.contained is None:
            return listens(self.tree(), port)
        if not self._served and self.container is not None:
            self._served = self.contained.serves(self.container, port)
            if not self._served:
                self.wait(EXIT_LAG_S)  # it may just have ended, which its keeper learns a little later
        return self._served

    # --- stop ---------------------------------------------------------------------------------------------------------

    def stop(self) -> Cleanup:
        """Run the stop ladder and return its proof; a second call returns the first's."""
        if self.cleanup is None:
            self._ask_to_stop()
            self.cleanup = self._proof()
            if self.cgroup is not None:
                self.cgroup.remove()
        return self.cleanup

    def _ask_to_stop(self) -> None:
        assert self.keeper.stdin is not None  # noqa: S101  opened as a pipe
        with contextlib.suppress(BrokenPipeError):
            self.keeper.stdin.write(f"{self.grace_s}\n".encode())
            self.keeper.stdin.close()
        slack_s = CONTAINER_SLACK_S if self.contained else REPORT_SLACK_S
        deadline = time.monotonic() + self.grace_s + keeper_module.KILL_DEADLINE_S + slack_s
        while self._stopped is None and time.monotonic() < deadline:
            self.wait(deadline - time.monotonic())
        self.keeper.kill()  # it has ended by itself unless it hangs
        self.keeper.wait()
        self._out.close()

    def _proof(self) -> Cleanup:
        told = self._stopped or {}
        if "left" not in told:
            told = {**told, "left": self._kill_without_keeper(), "removed": self._clear_without_keeper()}
        return Cleanup(
            left_processes=max(told["left"], self.cgroup.kill() if self.cgroup is not None else 0),
            port_free=self.port is None or port_free(self.port),
            shm_removed=tuple(told.get("removed", ())),
            stop_s=told.get("stop_s"),
            how=told.get("how", "not started" if self.pid is None else "keeper lost"),
            container=self.container,
        )

    def _kill_without_keeper(self) -> int:
        """The keeper was killed: kill the engine's session and whatever else was seen of its tree; count survivors."""
        if self.contained is not None:
            return self.contained.remove()
        if self.pid is None:
            return 0
        mates = {process for process in psutil.process_iter() if _session(process.pid) == self.pid} | self._seen
        for process in mates:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        return len(psutil.wait_procs(mates, timeout=keeper_module.KILL_DEADLINE_S)[1])

    def _clear_without_keeper(self) -> list[str]:
        """Remove what the engine left in memory and on disk, as far as the keeper told; hide secrets in its log."""
        removed = keeper_module.remove_memory(self.claimed)
        if self.contained is None:
            left = keeper_module.named_in_log(self.plan["log"], self.plan["leftovers"])
            removed += keeper_module.remove_named(left)
        keeper_module.hide(self.plan["log"], self.plan["secrets"])
        return removed


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
    secrets: Sequence[str] = (),
    contained: Contained | None = None,
    locks: Sequence[int] = (),
) -> Iterator[EngineProcess]:
    """Run `argv` under a keeper with exactly `env`, its output appended to `log`; stop it when the context closes.

    `leftovers` are patterns whose first group is the path of a file that the engine names in its log and never removes;
    `secrets` are taken out of the log when the engine has ended. `contained`: `argv` makes a container, which is kept.
    `locks` are descriptors that the keeper has open too, so that they stay held until nothing of the engine is left.
    The context yields an EngineProcess that has started, or whose `error` says why it could not.
    """
    plan = {
        "argv": list(argv),
        "env": dict(env),
        "cwd": str(cwd or _working_directory()),
        "log": str(log.absolute()),  # the keeper has another working directory
        "grace_s": GRACE_S,
        "leftovers": list(leftovers),
        "secrets": list(secrets),
        **(contained.plan if contained else {}),
    }
    program = contained.keeper if contained else Path(keeper_module.__file__)
    process = EngineProcess(_start_keeper(program, locks), plan, port, contained)
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


def _start_keeper(program: Path, locks: Sequence[int]) -> subprocess.Popen[bytes]:
    if not sys.platform.startswith("linux"):
        raise EnvironmentFault(f"engines can be launched on Linux only, this is {sys.platform}")
    return subprocess.Popen(
        [sys.executable, "-I", "-S", str(program)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd="/",
        pass_fds=locks,
        start_new_session=True,
    )


def _give_plan(keeper: subprocess.Popen[bytes], plan: Mapping[str, Any]) -> None:
    assert keeper.stdin is not None  # noqa: S101  opened as a pipe
    keeper.stdin.write(json.dumps(plan).encode() + b"\n")
    keeper.stdin.flush()
