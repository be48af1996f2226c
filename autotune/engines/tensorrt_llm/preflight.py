"""What is asked about a candidate before it is launched: shipped rules, then `TorchLlmArgs` of the user's own install.

The child that asks TorchLlmArgs could not be run where this was written: whatever goes wrong with it costs a warning.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.engines.base import Preflight, Refusal, Resolved
from autotune.engines.command import engine_python, resolved_model
from autotune.engines.containers.engine import ContainerRefusedError, EngineContainers
from autotune.engines.preflight import Asked, asked_child
from autotune.engines.secrets import secrets_of
from autotune.engines.tensorrt_llm.command import find_program, launch_plan
from autotune.engines.tensorrt_llm.container import CHILD as INSIDE_CHILD
from autotune.engines.tensorrt_llm.diagnosis import diagnose
from autotune.engines.tensorrt_llm.fields import fields_version
from autotune.engines.tensorrt_llm.options import options
from autotune.engines.tensorrt_llm.rules import Setting, broken_rules
from autotune.engines.tensorrt_llm.suggestions import gpu_of_study
from autotune.models.facts import Machine, model_config, model_folder
from autotune.models.feasibility import Setting as ModelSetting
from autotune.models.feasibility import broken_rules as broken_model_rules
from autotune.models.shapes import GpuSpec
from autotune.records.spec import Args, StudySpec
from autotune.records.trial import Failure, Fault, Outcome, Phase

CHILD = Path(__file__).with_name("preflight_child.py")


@contextmanager
def checked(
    spec: StudySpec, containers: EngineContainers | None, gpus: Sequence[str], tell: Callable[[str], None]
) -> Iterator[Preflight | None]:
    """Make ready to ask; TensorRT-LLM is asked where `engine.command` leads to a Python, or its image is here."""
    with ExitStack() as stack:
        child = None if spec.simulated else _child(spec, containers, gpus, tell, stack)
        env = {**os.environ, **spec.engine.env}
        yield TrtLlmPreflight(
            spec=spec,
            gpus=len(gpus),
            gpu=gpu_of_study(spec),
            config=model_config(model_folder(spec.model, env)) or {},
            child=child,
        )


def _child(
    spec: StudySpec,
    containers: EngineContainers | None,
    gpus: Sequence[str],
    tell: Callable[[str], None],
    stack: ExitStack,
) -> Asked | None:
    try:
        child = _outside(spec, gpus) if containers is None else _inside(containers, gpus)
    except ContainerRefusedError as refused:
        tell(f"candidates are checked by the rules for {fields_version()} only: {refused.failure.cause}")
        return None
    if child is None:
        tell(f"candidates are checked by the rules for {fields_version()} only: there is no TensorRT-LLM to ask")
        return None
    return stack.enter_context(
        asked_child(
            child.line,
            "TensorRT-LLM",
            env={**os.environ, **child.env},
            redacted=secrets_of(spec.engine.env),
            tell=tell,
            after=child.after,
        )
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Child:
    """How the child is started; `after` is called whenever it was killed."""

    line: Sequence[str]
    env: Mapping[str, str]
    after: Callable[[], object] = lambda: None


def _inside(containers: EngineContainers, gpus: Sequence[str]) -> _Child:
    line, env, kept = containers.asking((INSIDE_CHILD,), gpus)
    return _Child(line=line, env=env, after=kept.remove)


def _outside(spec: StudySpec, gpus: Sequence[str]) -> _Child | None:
    plan = launch_plan(spec.engine, spec.model, {}, folder=Path(), port=0, gpus=gpus)  # for its environment
    program = find_program(spec.engine, plan.env)
    python = engine_python(program) if program else None
    return _Child(line=(str(python), str(CHILD)), env=plan.env) if python else None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrtLlmPreflight:
    """Follows `engines.base.Preflight`."""

    spec: StudySpec
    gpus: int
    gpu: GpuSpec | None
    config: Mapping[str, Any]
    child: Asked | None

    def ask(self, args: Args) -> Refusal | Resolved | None:  # noqa: D102  the protocol documents it
        if (why := next(self._broken(args), None)) is not None:
            return refused_by_rule(why)
        if self.child is None:
            return None
        answer = self.child.ask({"model": resolved_model(self.spec.model), "options": options(args)})
        if answer is None:
            return None
        if answer["event"] == "resolved":
            return Resolved(settings=answer["settings"])
        return refusal_of(answer["error"], sure=answer["event"] == "refused")

    def _broken(self, args: Args) -> Iterator[str]:
        longest = self.spec.objective.workload.longest_tokens
        setting = Setting(
            args=args,
            gpus=self.gpus,
            gpu=self.gpu,
            longest_input_tokens=longest[0] if longest else None,
            longest_request_tokens=sum(longest) if longest else None,
        )
        yield from (why for _, why in broken_rules(setting))
        shapes = ("tensor_parallel_size", "pipeline_parallel_size")  # what models must divide by, for any engine
        given = {name: setting.size(name) for name in shapes}
        yield from broken_model_rules(
            ModelSetting(args=given, config=self.config, machine=Machine(gpus=0), longest_request_tokens=None)
        )


def refused_by_rule(why: str) -> Refusal:
    """A rule over the arguments does not hold."""
    return Refusal(
        failure=Failure(
            outcome=Outcome.BAD_CONFIG,
            fault=Fault.CANDIDATE,
            phase=Phase.LAUNCH,
            cause=why,
            remedy="add a rule to the search space, so that such candidates are not proposed",
        )
    )


def refusal_of(error: str, *, sure: bool) -> Refusal | None:
    """What an error of TorchLlmArgs means for a candidate; None when that can't be told."""
    failure = diagnose(1, Phase.LAUNCH, error)
    if failure.fault is Fault.SETUP or failure.outcome is Outcome.BAD_CONFIG:
        return Refusal(failure=failure)
    return refused_by_rule(" ".join(error.split())) if sure and failure.outcome is Outcome.UNKNOWN else None
