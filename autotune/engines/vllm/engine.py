"""vLLM as an engine: `vllm serve` in an environment of its own, kept, watched and stopped."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from autotune.engines import arguments
from autotune.engines.base import LaunchError, Preflight, Refusal, Server
from autotune.engines.command import engine_python
from autotune.engines.containers.engine import ContainerRefusedError, EngineContainers
from autotune.engines.containers.launch import ContainerLaunch
from autotune.engines.containers.runline import container_problems
from autotune.engines.launching import Started, launched, setup_failure
from autotune.engines.net import fresh_port
from autotune.engines.process import EngineProcess
from autotune.engines.secrets import secrets_of
from autotune.engines.vllm.command import ask_versions, find_program, launch_plan
from autotune.engines.vllm.container import CHILD, vllm_containers
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
from autotune.engines.vllm.preflight import child_in, vllm_preflight
from autotune.engines.vllm.server import VllmServer
from autotune.errors import Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import Candidate, Failure, LaunchPlan, Phase


class VllmEngine:
    """Follows `engines.base.Engine`. `kind` and `simulated` differ for a simulated server that takes the same flags."""

    def __init__(self, spec: StudySpec, *, kind: EngineKind = EngineKind.VLLM, simulated: bool = False) -> None:
        self._spec = spec
        self.kind = kind
        self.simulated = simulated
        container = spec.engine.container
        self._containers = vllm_containers(spec, container, simulated=simulated) if container else None

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        container = spec.engine.container
        return [*argument_problems(spec), *(container_problems(container) if container else ())]

    def launch(
        self,
        candidate: Candidate,
        *,
        trial_dir: Path,
        gpus: Sequence[str],
        on_phase: Callable[[str], None],
    ) -> AbstractContextManager[Server]:
        on_gpus = () if self.simulated else gpus
        way = VllmWay(spec=self._spec, containers=self._containers)
        return launched(way, candidate.args, trial_dir, gpus, on_phase=on_phase, watched_gpus=on_gpus)

    def preflight(
        self, *, gpus: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Preflight | None]:
        if self._containers is not None:
            return _preflight_inside(self._spec, self._containers, gpus, tell)
        return _preflight(self._spec, gpus, tell)

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def versions(self) -> Mapping[str, str | None]:
        return self._versions

    def containers_versions(self) -> Mapping[str, str | None]:
        """Which image and runtime it runs in; {} for a process of this machine."""
        return self._containers.own_versions() if self._containers is not None else {}

    @cached_property
    def _versions(self) -> Mapping[str, str | None]:
        return self._containers.versions() if self._containers is not None else ask_versions(self._spec.engine)

    def defaults(self) -> Args:
        return documented_defaults()

    def read_incumbent(self, text: str) -> Args:
        return read_incumbent(text)


# --- launch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmWay:
    """Follows `engines.launching.Way`: a process of this machine, or a container."""

    spec: StudySpec
    containers: EngineContainers | None
    phases: Sequence[tuple[str, str]] = PHASES
    leftovers: Sequence[str] = LEFTOVERS

    @property
    def timeout_s(self) -> float:
        return self.spec.engine.startup_timeout_s

    def plan(self, args: Args, trial_dir: Path, gpus: Sequence[str]) -> tuple[LaunchPlan, ContainerLaunch | None]:
        engine, port = self.spec.engine, fresh_port()
        if self.containers is not None:
            try:
                return self.containers.launch(args, folder=trial_dir, port=port, gpus=gpus)
            except ContainerRefusedError as refused:
                raise LaunchError(refused.failure) from refused
        plan = launch_plan(engine, self.spec.model, args, port=port, gpus=gpus)
        if find_program(engine.command, plan.env) is None:
            raise LaunchError(_no_program(plan), argv=plan.argv)
        return plan, None

    def not_started(self, process: EngineProcess) -> Failure:
        if self.containers is not None:
            return self.containers.failure(process.error or "", process.error_code)
        return setup_failure(f"the engine's program could not be started: {process.error}", "check engine.command")

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def known_cause(self, phase: Phase, log_text: str) -> Failure | None:
        return known_cause(phase, log_text)

    def too_little(self, args: Args, log_text: str) -> None:
        """It does not start with less than it was asked for."""

    def server(self, started: Started) -> Server:
        return VllmServer(self, started, self.spec.model)


def _no_program(plan: LaunchPlan) -> Failure:
    return setup_failure(
        f"there is no program `{plan.argv[0]}`",
        "set engine.command to vLLM's program, for example /path/to/venv/bin/vllm",
    )


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
    child = child_in(python)
    return vllm_preflight(child, spec.model, env={**os.environ, **plan.env}, redacted=plan.redacted, tell=tell)


@contextmanager
def _preflight_inside(
    spec: StudySpec, containers: EngineContainers, gpus: Sequence[str], tell: Callable[[str], None]
) -> Iterator[Preflight | None]:
    """The same child in the engine's image."""
    try:
        line, env, kept = containers.asking((CHILD,), gpus)
    except ContainerRefusedError as refused:
        yield Refuser(refused.failure)
        return
    secrets = secrets_of(spec.engine.env)
    with vllm_preflight(
        line, spec.model, env={**os.environ, **env}, redacted=secrets, tell=tell, after=kept.remove
    ) as preflight:
        yield preflight


@dataclass(frozen=True, slots=True)
class Refuser:
    """A preflight that refuses everything for one reason."""

    failure: Failure

    def ask(self, args: Args) -> Refusal:  # noqa: ARG002  whatever they are
        return Refusal(failure=self.failure)


# --- problems of a study ----------------------------------------------------------------------------------------------


def argument_problems(spec: StudySpec) -> Iterator[Problem]:
    """Everything in a study that `vllm serve` doesn't have or would refuse."""
    return arguments.argument_problems(spec, _problems)


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
