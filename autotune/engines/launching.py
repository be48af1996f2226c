"""One launch of an engine, whichever kind: started under its keeper, waited for, handed over, stopped and cleared away.

In: a `Way`, which is what differs between engines. Out: the `Server` that the way makes of a process that is ready.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from autotune.engines.base import LaunchError, Server
from autotune.engines.cgroups import OomKills
from autotune.engines.containers.failures import killed_for_memory
from autotune.engines.containers.launch import ContainerLaunch
from autotune.engines.gpu_memory import MemoryWatch, owner, watched
from autotune.engines.logfile import read_log, tail
from autotune.engines.process import GRACE_S, EngineProcess, engine_process
from autotune.engines.readiness import PhaseWatch, Readiness, wait_ready
from autotune.records.spec import Args
from autotune.records.trial import Failure, Fault, LaunchPlan, Outcome, Phase

LOG_NAME = "engine.log"
TAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """An engine that is ready: what its server is made of. `asked` are its arguments."""

    asked: Args
    plan: LaunchPlan
    process: EngineProcess
    log: Path
    startup_s: float
    memory: MemoryWatch

    def text(self) -> str:
        """The log so far, redacted."""
        return read_log(self.log, self.plan.redacted)


class Way(Protocol):
    """How a study's engine is started, and what its log means. Its log is read through `diagnose` and `known_cause`."""

    @property
    def timeout_s(self) -> float:
        """Seconds until a launch counts as failed."""

    @property
    def phases(self) -> Sequence[tuple[str, str]]:
        """Text in the log, and the phase of start-up that it marks."""

    @property
    def leftovers(self) -> Sequence[str]:
        """Patterns of log lines that name a file which the engine leaves behind."""

    def plan(self, args: Args, trial_dir: Path, gpus: Sequence[str]) -> tuple[LaunchPlan, ContainerLaunch | None]:
        """How to start the arguments. Raises LaunchError where there is nothing to start."""

    def not_started(self, process: EngineProcess) -> Failure:
        """Why the keeper could not start it."""

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        """Why it ended."""

    def known_cause(self, phase: Phase, log_text: str) -> Failure | None:
        """What its log tells while it has not ended."""

    def too_little(self, args: Args, log_text: str) -> Failure | None:
        """Why an engine that is ready can't serve the workload all the same; None when it can."""

    def server(self, started: Started) -> Server:
        """What the stages behind the launch see."""


@contextmanager
def launched(
    way: Way,
    args: Args,
    trial_dir: Path,
    gpus: Sequence[str],
    *,
    on_phase: Callable[[str], None],
    watched_gpus: Sequence[str],
) -> Iterator[Server]:
    """A launch, and the memory of the GPUs around it: a stop is over once that is back. Raises LaunchError."""
    with watched(watched_gpus) as memory:
        try:
            with _started(way, args, trial_dir, gpus, on_phase=on_phase, memory=memory) as server:
                yield server
            memory.settle()
        except LaunchError as error:
            error.failure, error.others_bytes = memory.blame(error.failure), dict(memory.others_bytes)
            memory.settle()
            error.cleanup = memory.proven(error.cleanup)
            raise


@contextmanager
def _started(
    way: Way,
    args: Args,
    trial_dir: Path,
    gpus: Sequence[str],
    *,
    on_phase: Callable[[str], None],
    memory: MemoryWatch,
) -> Iterator[Server]:
    plan, contained = way.plan(args, trial_dir, gpus)
    log = trial_dir / LOG_NAME
    for name, text in plan.files.items():
        path = trial_dir / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    log.write_bytes(b"")  # an attempt before this one may have left its errors here
    process: EngineProcess | None = None
    try:
        with engine_process(
            plan.argv,
            env={**os.environ, **plan.env},
            log=log,
            port=plan.port,
            leftovers=way.leftovers,
            secrets=plan.redacted,
            contained=contained,
        ) as process:
            memory.owns = owner(process)
            startup_s = _until_ready(way, plan, process, log, on_phase)
            started = Started(asked=args, plan=plan, process=process, log=log, startup_s=startup_s, memory=memory)
            _enough(way, started)
            process.grace_s = GRACE_S
            yield way.server(started)
    except LaunchError as error:
        error.cleanup = process.cleanup if process else None
        raise


def _until_ready(
    way: Way, plan: LaunchPlan, process: EngineProcess, log: Path, on_phase: Callable[[str], None]
) -> float:
    """Seconds that start-up took. Raises LaunchError."""
    began = time.monotonic()
    if process.error is not None:
        raise LaunchError(way.not_started(process), argv=plan.argv)
    watch = PhaseWatch(log, way.phases, on_phase)
    readiness = wait_ready(process, plan.port, timeout_s=way.timeout_s, watch=watch, path=plan.health_path)
    if readiness is Readiness.READY:
        return time.monotonic() - began
    text = read_log(log, plan.redacted)
    failure = _launch_failure(way, readiness, process, text, plan.port)
    raise LaunchError(failure, log_tail=tail(text, TAIL_LINES), argv=plan.argv)


def _enough(way: Way, started: Started) -> None:
    text = started.text()
    if failure := way.too_little(started.asked, text):
        raise LaunchError(failure, log_tail=tail(text, TAIL_LINES), argv=started.plan.argv)


def _launch_failure(way: Way, readiness: Readiness, process: EngineProcess, text: str, port: int) -> Failure:
    match readiness:
        case Readiness.FOREIGN:
            return Failure(
                outcome=Outcome.ENVIRONMENT,
                fault=Fault.ENVIRONMENT,
                phase=Phase.LAUNCH,
                cause=f"a server that this trial did not start answers on port {port}",
                remedy="another program took the port between its choice and its use; the next launch takes another",
            )
        case Readiness.CRASHED:
            return way.diagnose(None, Phase.LAUNCH, text)
        case Readiness.TIMEOUT:
            if known := way.known_cause(Phase.LAUNCH, text):  # it failed, and hangs instead of ending (vllm#52656)
                return known
            last = tail(text, 1)
            return Failure(
                outcome=Outcome.READY_TIMEOUT,
                fault=Fault.CANDIDATE,
                phase=Phase.LAUNCH,
                cause=f"not ready after {way.timeout_s:g} s; last line: {last[0].strip() if last else '(none)'}",
                remedy="raise engine.startup_timeout_s if the model only takes long to load or compile",
            )
    return why_ended(way, process, Phase.LAUNCH, text)


def why_ended(way: Way, process: EngineProcess, phase: Phase, text: str) -> Failure:
    """Why an engine that ended did so: by its log, and by what the kernel says of its OOM killer."""
    if process.oom_killed:
        return way.known_cause(phase, text) or killed_for_memory(phase)
    return way.diagnose(process.exit_code(), phase, f"{text}{kernel_words(process.oom_kills)}")


def kernel_words(oom_kills: OomKills) -> str:
    """A line as the engine's log would have it, for the rules of failures.yaml; "" when nothing was killed.

    A death by SIGKILL alone tells nothing: anybody may have sent it.
    """
    killed = oom_kills.since()
    return (
        f"\nkernel: oom-kill of {killed} process(es) while the engine ran (oom_kill in {oom_kills.place})"
        if killed
        else ""
    )


def setup_failure(cause: str, remedy: str) -> Failure:
    """What the user's set-up keeps from running."""
    return Failure(outcome=Outcome.ENVIRONMENT, fault=Fault.SETUP, phase=Phase.LAUNCH, cause=cause, remedy=remedy)
