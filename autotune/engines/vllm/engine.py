"""vLLM as an engine: `vllm serve` in an environment of its own, kept, watched and stopped."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.engines.base import LaunchError, Preflight, Refusal, Server
from autotune.engines.net import fresh_port
from autotune.engines.process import GRACE_S, EngineProcess, engine_process
from autotune.engines.readiness import PhaseWatch, Readiness, wait_ready
from autotune.engines.vllm.command import ask_versions, engine_python, find_program, launch_plan
from autotune.engines.vllm.diagnosis import diagnose, known_cause
from autotune.engines.vllm.flags import (
    SECRETS,
    TUNER_OWNED,
    complaint,
    documented_defaults,
    flags,
    flags_version,
    similar,
)
from autotune.engines.vllm.incumbent import read_incumbent
from autotune.engines.vllm.logs import LEFTOVERS, PHASES
from autotune.engines.vllm.preflight import vllm_preflight
from autotune.engines.vllm.server import VllmServer, read_log, tail
from autotune.errors import Problem
from autotune.records.spec import Args, Choice, Domain, EngineKind, FloatRange, IntRange, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, LaunchPlan, Outcome, Phase

LOG_NAME = "engine.log"
TAIL_LINES = 40


class VllmEngine:
    """Follows `engines.base.Engine`. `kind` and `simulated` differ for a simulated server that takes the same flags."""

    def __init__(self, spec: StudySpec, *, kind: EngineKind = EngineKind.VLLM, simulated: bool = False) -> None:
        self._spec = spec
        self.kind = kind
        self.simulated = simulated

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        return [*argument_problems(spec)]

    def launch(
        self,
        candidate: Candidate,
        *,
        trial_dir: Path,
        gpus: Sequence[str],
        on_phase: Callable[[str], None],
    ) -> AbstractContextManager[Server]:
        return _launch(self._spec, candidate.args, trial_dir, gpus, on_phase)

    def preflight(
        self, *, gpus: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Preflight | None]:
        return _preflight(self._spec, gpus, tell)

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def versions(self) -> Mapping[str, str | None]:
        return self._versions

    @cached_property
    def _versions(self) -> Mapping[str, str | None]:
        return ask_versions(self._spec.engine)

    def defaults(self) -> Args:
        return documented_defaults()

    def read_incumbent(self, text: str) -> Args:
        return read_incumbent(text)


# --- launch -----------------------------------------------------------------------------------------------------------


@contextmanager
def _launch(
    spec: StudySpec, args: Args, trial_dir: Path, gpus: Sequence[str], on_phase: Callable[[str], None]
) -> Iterator[Server]:
    plan = launch_plan(spec.engine, spec.model, args, port=fresh_port(), gpus=gpus)
    if find_program(spec.engine.command, plan.env) is None:
        raise LaunchError(_no_program(plan), argv=plan.argv)
    log = trial_dir / LOG_NAME
    log.write_bytes(b"")  # an attempt before this one may have left its errors here
    process: EngineProcess | None = None
    try:
        with engine_process(
            plan.argv, env={**os.environ, **plan.env}, log=log, port=plan.port, leftovers=LEFTOVERS
        ) as process:
            startup_s = _until_ready(spec, plan, process, log, on_phase)
            process.grace_s = GRACE_S
            yield VllmServer(plan, process, log, startup_s, spec.model)
    except LaunchError as error:
        error.cleanup = process.cleanup if process else None
        raise


def _until_ready(
    spec: StudySpec, plan: LaunchPlan, process: EngineProcess, log: Path, on_phase: Callable[[str], None]
) -> float:
    """Seconds that start-up took. Raises LaunchError."""
    began = time.monotonic()
    if process.error is not None:
        failure = _setup(f"the engine's program could not be started: {process.error}", "check engine.command")
        raise LaunchError(failure, argv=plan.argv)
    watch = PhaseWatch(log, PHASES, on_phase)
    timeout_s = spec.engine.startup_timeout_s
    readiness = wait_ready(process, plan.port, timeout_s=timeout_s, watch=watch)
    if readiness is Readiness.READY:
        return time.monotonic() - began
    text = read_log(log, plan.redacted)
    failure = _launch_failure(readiness, process.exit_code(), text, plan.port, timeout_s)
    raise LaunchError(failure, log_tail=tail(text, TAIL_LINES), argv=plan.argv)


def _launch_failure(readiness: Readiness, exit_code: int | None, text: str, port: int, timeout_s: float) -> Failure:
    match readiness:
        case Readiness.FOREIGN:
            return Failure(
                outcome=Outcome.ENVIRONMENT,
                fault=Fault.ENVIRONMENT,
                phase=Phase.LAUNCH,
                cause=f"a server that this trial did not start answers on port {port}",
                remedy="another program took the port between its choice and its use; the next launch takes another",
            )
        case Readiness.TIMEOUT:
            if known := known_cause(Phase.LAUNCH, text):  # it failed, and hangs instead of ending (vllm#52656)
                return known
            last = tail(text, 1)
            return Failure(
                outcome=Outcome.READY_TIMEOUT,
                fault=Fault.CANDIDATE,
                phase=Phase.LAUNCH,
                cause=f"not ready after {timeout_s:g} s; last line: {last[0].strip() if last else '(none)'}",
                remedy="raise engine.startup_timeout_s if the model only takes long to load or compile",
            )
    return diagnose(exit_code, Phase.LAUNCH, text)


def _no_program(plan: LaunchPlan) -> Failure:
    return _setup(
        f"there is no program `{plan.argv[0]}`",
        "set engine.command to vLLM's program, for example /path/to/venv/bin/vllm",
    )


def _setup(cause: str, remedy: str) -> Failure:
    return Failure(outcome=Outcome.ENVIRONMENT, fault=Fault.SETUP, phase=Phase.LAUNCH, cause=cause, remedy=remedy)


# --- preflight --------------------------------------------------------------------------------------------------------


def _preflight(
    spec: StudySpec, gpus: Sequence[str], tell: Callable[[str], None]
) -> AbstractContextManager[Preflight | None]:
    plan = launch_plan(spec.engine, spec.model, {}, port=0, gpus=gpus)  # of which only the environment is used
    program = find_program(spec.engine.command, plan.env)
    if program is None:
        return nullcontext(Refuser(_no_program(plan)))
    python = engine_python(program)
    if python is None:
        tell(f"candidates are not checked before they are launched: {program} names no Python to ask")
        return nullcontext(None)
    return vllm_preflight(python, spec.model, env={**os.environ, **plan.env}, redacted=plan.redacted, tell=tell)


@dataclass(frozen=True, slots=True)
class Refuser:
    """A preflight that refuses everything for one reason."""

    failure: Failure

    def ask(self, args: Args) -> Refusal:  # noqa: ARG002  whatever they are
        return Refusal(failure=self.failure)


# --- problems of a study ----------------------------------------------------------------------------------------------


def argument_problems(spec: StudySpec) -> Iterator[Problem]:
    """Everything in a study that `vllm serve` doesn't have or would refuse."""
    for name, value in spec.engine.args.items():
        yield from _problems(("engine", "args", name), name, (value,))
    for name in spec.search_space.derived:
        yield from _problems(("search_space", "derived", name), name, ())
    for parameter in spec.search_space.parameters:
        yield from _problems(("search_space", "parameters", parameter.name), parameter.name, _samples(parameter.domain))
    for name, value in (spec.incumbent or {}).items():
        yield from _problems(("incumbent", name), name, (value,))


def _samples(domain: Domain) -> tuple[Any, ...]:
    """Values that stand for a domain: its ends, or all of its choices."""
    match domain:
        case Choice(values=values):
            return values
        case IntRange(low=low, high=high) | FloatRange(low=low, high=high):
            return (low, high)


def _problems(path: tuple[str, ...], name: str, values: Sequence[Any]) -> Iterator[Problem]:
    head = name.partition(".")[0]
    if head in TUNER_OWNED:
        yield Problem(path=path, message=f"`{name}` belongs to the tuner", hint="remove it")
    elif head in SECRETS:
        yield Problem(
            path=path, message=f"`{name}` would put a secret on the command line", hint="give secrets in engine.env"
        )
    elif head not in flags():
        yield Problem(path=path, message=f"vLLM {flags_version()} has no parameter `{name}`", hint=similar(head))
    else:
        wrong = (why for value in values if (why := complaint(name, value)) is not None)
        yield from (Problem(path=path, message=f"`{name}`: {why}") for why in wrong)
