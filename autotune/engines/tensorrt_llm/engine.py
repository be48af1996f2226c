"""TensorRT-LLM as an engine: `trtllm-serve` in an environment of its own, kept, watched and stopped.

With `simulate` in the study, the stand-in of engines/simulated/trtllm.py is started in its place, by the same means.
"""

# ruff: noqa: D102  the protocols in engines/base.py and engines/launching.py document these

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any

from autotune.engines.arguments import argument_problems
from autotune.engines.base import LaunchError, Preflight, Server
from autotune.engines.containers.engine import ContainerRefusedError, EngineContainers
from autotune.engines.containers.launch import ContainerLaunch
from autotune.engines.containers.runline import container_problems
from autotune.engines.launching import Started, launched, setup_failure
from autotune.engines.net import fresh_port
from autotune.engines.process import EngineProcess
from autotune.engines.tensorrt_llm.command import ask_versions, find_program, launch_plan
from autotune.engines.tensorrt_llm.container import image_problems, trtllm_containers
from autotune.engines.tensorrt_llm.diagnosis import diagnose, known_cause, too_short
from autotune.engines.tensorrt_llm.fields import (
    TUNER_OWNED,
    complaint,
    documented_defaults,
    fields_version,
    known,
    leaves,
    similar,
)
from autotune.engines.tensorrt_llm.incumbent import read_incumbent
from autotune.engines.tensorrt_llm.logs import PHASES
from autotune.engines.tensorrt_llm.preflight import checked
from autotune.engines.tensorrt_llm.rules import Setting, broken_rules
from autotune.engines.tensorrt_llm.server import TrtLlmServer
from autotune.engines.tensorrt_llm.suggestions import suggested
from autotune.errors import Problem
from autotune.models.shapes import gpu_names, gpu_of, model_names, shape_of
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import Candidate, Failure, LaunchPlan, Phase

STAND_IN_SAYS = "SIMULATED ENGINE"
"""In the log of what only pretends, so that no figure of it can be taken for evidence."""


class TensorRtLlmEngine:
    """Follows `engines.base.Engine`."""

    kind = EngineKind.TENSORRT_LLM

    def __init__(self, spec: StudySpec) -> None:
        self._spec = spec
        self.simulated = spec.simulated
        container = spec.engine.container
        self._containers = trtllm_containers(spec, container) if container else None
        self._started = False  # in virtual time: whether the weights' pages are in memory

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        return [
            *argument_problems(spec, look),
            *rule_problems(spec),
            *_container_problems(spec),
            *machine_problems(spec),
        ]

    def launch(
        self,
        candidate: Candidate,
        *,
        trial_dir: Path,
        gpus: Sequence[str],
        on_phase: Callable[[str], None],
    ) -> AbstractContextManager[Server]:
        simulate = self._spec.engine.simulate
        if simulate is not None and simulate.face == "virtual":
            return self._launch_virtual(candidate, trial_dir.name, len(gpus), on_phase)
        on_gpus = () if self.simulated else gpus
        return launched(self.way(), candidate.args, trial_dir, gpus, on_phase=on_phase, watched_gpus=on_gpus)

    def _launch_virtual(
        self, candidate: Candidate, trial: str, gpus: int, on_phase: Callable[[str], None]
    ) -> AbstractContextManager[Server]:
        from autotune.engines.simulated.trtllm_virtual import launch_virtual  # noqa: PLC0415 - heavy

        cold, self._started = not self._started, True
        return launch_virtual(self._spec, candidate, trial=trial, gpus=gpus, cold=cold, on_phase=on_phase)

    def way(self) -> TrtLlmWay:
        """How the engine is started."""
        return TrtLlmWay(spec=self._spec, containers=self._containers)

    def preflight(
        self, *, gpus: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Preflight | None]:
        return checked(self._spec, self._containers, gpus, tell)

    def suggestions(self, gpus: Sequence[str]) -> Iterable[Args]:
        return suggested(self._spec, gpus)

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def versions(self) -> Mapping[str, str | None]:
        return self._versions

    @cached_property
    def _versions(self) -> Mapping[str, str | None]:
        simulated = self._spec.engine.simulate
        if simulated is not None:
            inside = self._containers.own_versions() if self._containers is not None else {}
            return {**inside, "simulated_engine": f"TensorRT-LLM on {simulated.gpu}, {simulated.face} face"}
        return self._containers.versions() if self._containers is not None else self.ask_versions()

    def ask_versions(self) -> Mapping[str, str | None]:
        """Versions in the environment of `engine.command`."""
        return ask_versions(self._spec.engine)

    def defaults(self) -> Args:
        return documented_defaults()

    def read_incumbent(self, text: str) -> Args:
        return read_incumbent(text)


# --- launch -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtLlmWay:
    """Follows `engines.launching.Way`: a process of this machine, or a container."""

    spec: StudySpec
    containers: EngineContainers | None
    phases: Sequence[tuple[str, str]] = PHASES
    leftovers: Sequence[str] = ()

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
        plan = launch_plan(engine, self.spec.model, args, folder=trial_dir, port=port, gpus=gpus)
        if find_program(engine, plan.env) is None:
            raise LaunchError(no_program(plan.argv[0]), argv=plan.argv)
        return plan, None

    def not_started(self, process: EngineProcess) -> Failure:
        if self.containers is not None:
            return self.containers.failure(process.error or "", process.error_code)
        return setup_failure(f"the engine's program could not be started: {process.error}", "check engine.command")

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def known_cause(self, phase: Phase, log_text: str) -> Failure | None:
        return known_cause(phase, log_text)

    def too_little(self, args: Args, log_text: str) -> Failure | None:
        if STAND_IN_SAYS in log_text and not self.spec.simulated:
            return setup_failure(
                "engine.command starts the stand-in, which is no TensorRT-LLM",
                "set engine.simulate in the study, so that its figures are labelled as simulated",
            )
        longest = self.spec.objective.workload.longest_tokens
        asked = args.get("max_seq_len")
        return too_short(sum(longest) if longest else asked if isinstance(asked, int) else None, log_text)

    def server(self, started: Started) -> Server:
        return TrtLlmServer(self, started, self.spec.model)


def no_program(name: str) -> Failure:
    """There is nothing to launch."""
    return setup_failure(
        f"there is no program `{name}`",
        "set engine.command to TensorRT-LLM's program, for example /path/to/venv/bin/trtllm-serve",
    )


# --- problems of a study ----------------------------------------------------------------------------------------------


def look(path: tuple[str, ...], name: str, values: Sequence[Any]) -> Iterator[Problem]:
    """What is wrong with an argument: a mapping is looked at field by field."""
    if name.partition(".")[0] in TUNER_OWNED:
        yield Problem(path=path, message=f"`{name}` belongs to the tuner", hint="remove it")
        return
    asked = [pair for value in values for pair in leaves({name: value})] or [(name, None)]
    found = [problem for field, value in asked for problem in _field_problems(path, field, value)]
    yield from {problem.message: problem for problem in found}.values()


def _field_problems(path: tuple[str, ...], field: str, value: Any) -> Iterator[Problem]:  # noqa: ANN401  a YAML value
    if not known(field):
        yield Problem(path=path, message=f"TensorRT-LLM {fields_version()} has no field `{field}`", hint=similar(field))
    elif value is not None and (why := complaint(field, value)) is not None:
        yield Problem(path=path, message=f"`{field}`: {why}")


def rule_problems(spec: StudySpec) -> Iterator[Problem]:
    """Rules over what the study fixes, those apart that a searched field may still mend."""
    searched = {parameter.name for parameter in spec.search_space.parameters}
    fixed = dict(leaves(spec.engine.args))
    longest = spec.objective.workload.longest_tokens
    setting = Setting(args=spec.engine.args, longest_request_tokens=sum(longest) if longest else None)
    for name, why in broken_rules(setting):
        if name in fixed and name not in searched:
            yield Problem(path=("engine", "args", name.partition(".")[0]), message=why)


def _container_problems(spec: StudySpec) -> Iterator[Problem]:
    container = spec.engine.container
    return chain(container_problems(container), image_problems(container)) if container else iter(())


def machine_problems(spec: StudySpec) -> Iterator[Problem]:
    """The stand-in computes with tables of models and GPUs."""
    simulated = spec.engine.simulate
    if simulated is None:
        return
    if gpu_of(simulated.gpu, "tensorrt_llm") is None:
        yield Problem(
            path=("engine", "simulate", "gpu"),
            message=f"no constants for a GPU called {simulated.gpu!r}",
            hint=f"one of {', '.join(gpu_names())}",
        )
    if shape_of(spec.model) is None:
        yield Problem(
            path=("model",),
            message=f"the shape of {spec.model!r} is not known",
            hint=f"give a folder with the model's config.json, or one of {', '.join(model_names())}",
        )
