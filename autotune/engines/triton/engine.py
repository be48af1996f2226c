"""Triton as an engine: its OpenAI-compatible frontend over TensorRT-LLM's LLM API backend, both tuned together.

With `simulate` in the study, the stand-in of engines/simulated/triton.py is started in its place, by the same means.
"""

# ruff: noqa: D102  the protocols in engines/base.py and engines/launching.py document these

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from autotune.engines.arguments import argument_problems
from autotune.engines.base import LaunchError, Preflight, Refusal, Resolved, Server
from autotune.engines.command import ask_versions, program_path
from autotune.engines.containers.engine import ContainerRefusedError
from autotune.engines.containers.launch import ContainerLaunch
from autotune.engines.containers.runline import container_problems
from autotune.engines.hub import cached_snapshot
from autotune.engines.launching import Started, setup_failure
from autotune.engines.net import fresh_port
from autotune.engines.tensorrt_llm import engine as trtllm
from autotune.engines.tensorrt_llm.container import image_problems
from autotune.engines.tensorrt_llm.engine import TensorRtLlmEngine, TrtLlmWay
from autotune.engines.tensorrt_llm.fields import documented_defaults
from autotune.engines.tensorrt_llm.incumbent import read_incumbent
from autotune.engines.tensorrt_llm.logs import PHASES
from autotune.engines.tensorrt_llm.preflight import checked, refused_by_rule
from autotune.engines.triton import parameters
from autotune.engines.triton.command import ASK_VERSIONS, UNKNOWN_VERSIONS, launch_plan, with_command
from autotune.engines.triton.container import EXAMPLE, triton_containers
from autotune.engines.triton.diagnosis import diagnose, known_cause
from autotune.engines.triton.repository import split
from autotune.engines.triton.server import TritonServer
from autotune.errors import InputError, Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import Failure, LaunchPlan, Phase


class TritonEngine(TensorRtLlmEngine):
    """Follows `engines.base.Engine`."""

    kind = EngineKind.TRITON

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(with_command(spec))
        container = spec.engine.container
        self._containers = triton_containers(self._spec, container) if container else None

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        container = spec.engine.container
        return [
            *argument_problems(spec, look),
            *trtllm.rule_problems(spec),
            *_rule_problems(spec),
            *(chain(container_problems(container), image_problems(container, EXAMPLE)) if container else ()),
            *trtllm.machine_problems(spec),
        ]

    def way(self) -> TrtLlmWay:
        return TritonWay(spec=self._spec, containers=self._containers)

    @contextmanager
    def preflight(self, *, gpus: Sequence[str], tell: Callable[[str], None]) -> Iterator[Preflight | None]:
        with checked(self._spec, self._containers, gpus, tell) as inner:
            yield TritonPreflight(inner=inner, gpus=len(gpus))

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def ask_versions(self) -> Mapping[str, str | None]:
        engine = self._spec.engine
        return ask_versions(program_path(engine.command, engine.env), ASK_VERSIONS, UNKNOWN_VERSIONS)

    def defaults(self) -> Args:
        return {**documented_defaults(), **parameters.DEFAULTS}

    def read_incumbent(self, text: str) -> Args:
        return read_model_yaml(text)


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonWay(TrtLlmWay):
    """Follows `engines.launching.Way`."""

    phases: Sequence[tuple[str, str]] = (*PHASES, ("loading: tensorrt_llm", "loading the model"))

    def plan(self, args: Args, trial_dir: Path, gpus: Sequence[str]) -> tuple[LaunchPlan, ContainerLaunch | None]:
        engine, port = self.spec.engine, fresh_port()
        if not self.spec.simulated and not has_tokenizer(self.spec):
            raise LaunchError(_no_tokenizer(self.spec.model))
        if self.containers is not None:
            try:
                return self.containers.launch(args, folder=trial_dir, port=port, gpus=gpus)
            except ContainerRefusedError as refused:
                raise LaunchError(refused.failure) from refused
        plan = launch_plan(engine, self.spec.model, args, folder=trial_dir, port=port, gpus=gpus)
        if program_path(engine.command, plan.env) is None:
            raise LaunchError(_no_program(plan.argv[0]), argv=plan.argv)
        return plan, None

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return diagnose(exit_code, phase, log_text)

    def known_cause(self, phase: Phase, log_text: str) -> Failure | None:
        return known_cause(phase, log_text)

    def server(self, started: Started) -> Server:
        return TritonServer(self, started, self.spec.model)


def _no_program(name: str) -> Failure:
    return setup_failure(
        f"there is no program `{name}`",
        "set engine.command to `python3 …/openai_frontend/main.py` of Triton, or give engine.container",
    )


def has_tokenizer(spec: StudySpec) -> bool:
    """Whether the model's tokenizer.json is on this machine: the frontend takes prompts as text only."""
    local = Path(spec.model).expanduser()
    folder = local if local.is_dir() else cached_snapshot(spec.model, None, os.environ)
    return folder is not None and (folder / "tokenizer.json").is_file()


def _no_tokenizer(model: str) -> Failure:
    return setup_failure(
        f"there is no tokenizer.json of {model} on this machine, and Triton's frontend takes prompts as text only",
        "fetch the model first: autotune prepare FILE",
    )


# --- checks -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonPreflight:
    """Follows `engines.base.Preflight`: Triton's rules, then TensorRT-LLM's checks of what is its own."""

    inner: Preflight | None
    gpus: int

    def ask(self, args: Args) -> Refusal | Resolved | None:
        if (broken := next(parameters.broken_rules(args, self.gpus), None)) is not None:
            return refused_by_rule(broken[1])
        return self.inner.ask(split(args)[1]) if self.inner is not None else None


def look(path: tuple[str, ...], name: str, values: Sequence[Any]) -> Iterator[Problem]:
    """What is wrong with an argument: Triton's own by parameters.py, all else is TensorRT-LLM's."""
    if not parameters.is_own(name):
        yield from trtllm.look(path, name, values)
        return
    asked = [pair for value in values for pair in parameters.own_leaves(name, value)] or [(name, None)]
    found = [problem for field, value in asked for problem in _own_problems(path, field, value)]
    yield from {problem.message: problem for problem in found}.values()


def _own_problems(path: tuple[str, ...], field: str, value: Any) -> Iterator[Problem]:  # noqa: ANN401  a YAML value
    if field in parameters.TUNER_OWNED:
        yield Problem(path=path, message=f"`{field}` belongs to the tuner", hint="remove it")
    elif field not in parameters.FIELDS:
        yield Problem(path=path, message=f"Triton has no `{field}` to be tuned", hint=parameters.similar(field))
    elif value is not None and (why := parameters.complaint(field, value)) is not None:
        yield Problem(path=path, message=f"`{field}`: {why}")


def _rule_problems(spec: StudySpec) -> Iterator[Problem]:
    """Rules over what the study fixes, those apart that a searched argument may still mend."""
    searched = {parameter.name for parameter in spec.search_space.parameters}
    for name, why in parameters.broken_rules(spec.engine.args, None):
        if name not in searched:
            yield Problem(path=("engine", "args", name), message=why)


def read_model_yaml(text: str) -> Args:
    """Arguments of what runs today: the backend's model.yaml, or a `trtllm-serve …`. Raises InputError."""
    if "trtllm-serve" in text:
        return read_incumbent(text)
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"the incumbent is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError("the incumbent's YAML is not a mapping of options", "give the model.yaml of the llmapi model")
    triton = {name: value for name, value in dict(content.pop("triton_config", {})).items() if name != "decoupled"}
    own = {f"triton_config.{name}": value for name, value in triton.items() if value}
    engine = read_incumbent(yaml.safe_dump(content)) if content else {}
    return {**engine, **own}
