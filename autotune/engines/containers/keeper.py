"""The keeper of one container: starts it, follows its log, and leaves nothing of it behind.

It speaks as `engines/keeper.py` does: a plan and later a grace on stdin, events on stdout, and the end of stdin is a
request to stop. A container is no child of anybody here, and killing the runtime's client doesn't end it. So it is held
by its id, and found again by a label that no other container has, also where the client died before it told an id.

It imports the standard library and its sibling only, and is started by path with `-I -S`.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

# Last, so that nothing beside this program can shadow what the standard library has.
sys.path.append(str(Path(__file__).resolve().parents[3]))

from autotune.engines.keeper import (
    KILL_DEADLINE_S,
    POLL_S,
    TICK_S,
    Orders,
    SharedMemory,
    descendants,
    hide,
    ignore_signals,
    read_plan,
    remove_memory,
    report,
    wake_pipe,
)

CALL_TIMEOUT_S = 30.0  # a client answers in 0.1 s; a hung daemon never
LOG_DRAIN_S = 2.0  # the last lines reach the follower within 0.3 s of the end
UNREACHABLE_S = 5.0  # a daemon that restarts is back by then
EXIT_LAG_S = 2.0  # podman looks for a container's end every 0.25 s
KILLED = 128 + signal.SIGKILL


class Container:
    """One container from `run` to the proof that it is gone."""

    def __init__(self, plan: dict[str, Any]) -> None:
        self.plan = plan
        self.log = Path(plan["log"])
        self.memory = SharedMemory()
        self.id: str | None = None
        self.pid = 0
        self.exit_code: int | None = None
        self.waiter: subprocess.Popen[bytes] | None = None
        self.follower: subprocess.Popen[bytes] | None = None
        self.followed_since_s = 0.0
        self.log_start = 0  # what the client itself wrote comes before

    # --- the runtime's client -----------------------------------------------------------------------------------------

    def start(self, *words: str, **streams: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401  as Popen takes them
        """Start the client; it has neither our signals nor our pipe."""
        return subprocess.Popen(
            words,
            env=self.plan["env"],
            cwd=self.plan["cwd"],
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            **streams,
        )

    def call(self, *words: str, timeout_s: float = CALL_TIMEOUT_S) -> tuple[int | None, str]:
        """Return the client's exit code and output; None when it did not answer in time."""
        client = self.start(self.plan["client"], *words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            output, _ = client.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            client.kill()
            client.communicate()
            return None, ""
        return client.returncode, output.decode(errors="replace")

    def found(self) -> list[str] | None:
        """Return the ids under our label, in whatever state; None when the runtime can't be asked."""
        code, output = self.call("ps", "-a", "-q", "--no-trunc", "--filter", f"label={self.plan['label']}")
        return output.split() if code == 0 else None

    def state(self) -> dict[str, Any] | None:
        """Return the container's state, {} when it is gone, None when the runtime can't be asked."""
        form = "{{json .State}}"
        code, output = self.call("inspect", "--type", "container", "--format", form, str(self.id))
        if code == 0:
            found: dict[str, Any] = json.loads(output)
            return found
        return {} if "no such" in output.lower() else None

    # --- start --------------------------------------------------------------------------------------------------------

    def run(self, orders: Orders) -> float | None:
        """Start it. Return the grace where the stop was asked for meanwhile; `id` is None when it could not start."""
        with self.log.open("ab", buffering=0) as log:
            client = self.start(*self.plan["argv"], stdout=subprocess.PIPE, stderr=log)
        grace_s = None
        while client.poll() is None and grace_s is None:
            grace_s = orders.wait(TICK_S)
        client.kill()
        output = client.communicate()[0].decode(errors="replace")
        if grace_s is None and client.returncode == 0:
            self.id = output.split()[-1]
            self.pid = int((self.state() or {}).get("Pid", 0))
            self.log_start = self.log.stat().st_size
            self._follow()
            self.waiter = self.start(
                self.plan["client"], "wait", self.id, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
            report("started", pid=self.pid, container=self.id)
        elif grace_s is None:
            report("failed", error=self._said(), code=client.returncode)
            return 0.0
        return grace_s

    def _said(self) -> str:
        return self.log.read_text(errors="replace").strip()

    def _follow(self) -> None:
        """Follow the log from its start: what a follower that was killed has written is written again."""
        os.truncate(self.log, self.log_start)
        self.followed_since_s = time.monotonic()
        with self.log.open("ab", buffering=0) as log:
            self.follower = self.start(self.plan["client"], "logs", "--follow", str(self.id), stdout=log, stderr=log)

    # --- watch --------------------------------------------------------------------------------------------------------

    def watch(self, orders: Orders) -> float:
        """Return the grace that was asked for, once it is or the tuner is gone."""
        while (grace_s := orders.wait(TICK_S)) is None:
            self.look()
        return grace_s

    def look(self) -> None:
        """Heed the end of the container, and of those who watch it for us."""
        if self.exit_code is not None:
            return
        self.memory.look(self.processes())
        assert self.waiter is not None  # noqa: S101  there is one from the start on
        assert self.follower is not None  # noqa: S101
        if self.waiter.poll() is not None:
            self._heed_waiter(self.waiter.communicate()[0].decode(errors="replace").split())
        elif self.follower.poll() is not None and time.monotonic() > self.followed_since_s + TICK_S:
            self._follow()

    def _heed_waiter(self, said: list[str]) -> None:
        state = self.state()
        if said and said[-1].lstrip("-").isdigit():
            self._ended(int(said[-1]), state or {})
        elif state is not None and not state.get("Running"):  # gone: somebody removed it
            self._ended(int(state.get("ExitCode", KILLED)), state)
        else:  # the client was killed, or its daemon is away
            time.sleep(POLL_S)
            self.waiter = self.start(
                self.plan["client"], "wait", str(self.id), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )

    def _ended(self, code: int, state: dict[str, Any]) -> None:
        self.exit_code = code
        self._finish_log()
        report("exited", code=code, oom_killed=bool(state.get("OOMKilled")))

    def _finish_log(self) -> None:
        assert self.follower is not None  # noqa: S101
        try:
            self.follower.wait(LOG_DRAIN_S)
        except subprocess.TimeoutExpired:
            self.follower.kill()
            self.follower.wait()
            self._follow()
            with contextlib.suppress(subprocess.TimeoutExpired):  # a daemon that hangs: the log is what it is
                self.follower.wait(CALL_TIMEOUT_S)

    def processes(self) -> list[int]:
        """Return the container's processes while they share the host's memory; its own memory ends with it."""
        return [self.pid, *descendants(self.pid)] if self.pid and self.plan["host_ipc"] else []

    # --- stop ---------------------------------------------------------------------------------------------------------

    def stop(self, grace_s: float) -> None:
        """Stop with grace, then remove; report what is left by asking the runtime, and the kernel where it can tell."""
        began = time.monotonic()
        how = "not started" if self.id is None else "exited"
        self.memory.claim(self.processes())
        if self.id is not None and self.exit_code is None:
            self.call("stop", "-t", str(math.ceil(grace_s)), self.id, timeout_s=grace_s + KILL_DEADLINE_S)
            how = "kill" if self._exit_after_stop() in (KILLED, None) else "term"
        left = self.remove()
        for helper in (self.waiter, self.follower):
            if helper is not None:
                helper.kill()
                helper.wait()
        removed = remove_memory(self.memory.ours)
        hide(self.plan["log"], self.plan["secrets"])
        report("stopped", left=left, how=how, stop_s=time.monotonic() - began, removed=removed)

    def _exit_after_stop(self) -> int | None:
        deadline = time.monotonic() + EXIT_LAG_S
        while self.exit_code is None and time.monotonic() < deadline:
            self.look()
            time.sleep(POLL_S)
        return self.exit_code

    def remove(self) -> int:
        """Remove whatever has our label; return how many are left. An unreachable runtime leaves one, unless the kernel
        says that its first process, and with it the container, is gone."""
        began = time.monotonic()
        while (found := self.found()) != []:
            if time.monotonic() > began + (UNREACHABLE_S if found is None else KILL_DEADLINE_S):
                break
            for identity in found or ([self.id] if self.id else []):
                self.call("kill", identity)
                self.call("rm", "--force", "--volumes", identity)
            time.sleep(POLL_S)
        return len(found) if found is not None else self._alive()

    def _alive(self) -> int:
        if not self.pid:
            return 1
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self.pid, signal.SIGKILL)
        time.sleep(POLL_S)
        return int(Path(f"/proc/{self.pid}").exists())


def main() -> None:
    """Keep one container."""
    wake = wake_pipe()
    ignore_signals()
    plan = read_plan()
    orders = Orders(wake, float(plan["grace_s"]))
    container = Container(plan)
    grace_s = container.run(orders)
    container.stop(container.watch(orders) if grace_s is None else grace_s)


if __name__ == "__main__":
    main()
