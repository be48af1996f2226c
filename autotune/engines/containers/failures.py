"""Why a container did not start or was killed, by what the runtime's client says and the rules of failures.yaml."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.records.spec import ContainerSpec
from autotune.records.trial import Failure, Fault, Outcome, Phase

CAUSE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of failures.yaml."""

    name: str
    pattern: re.Pattern[str]
    fault: Fault
    remedy: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """failures.yaml: rules in their order, and what exit codes mean."""

    rules: tuple[Rule, ...]
    codes: Mapping[int, str]


@cache
def knowledge() -> Knowledge:
    """The rules, read once."""
    import yaml  # noqa: PLC0415  only a failure needs it

    text = resources.files("autotune.engines.containers").joinpath("failures.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return Knowledge(rules=tuple(_rule(**row) for row in content["rules"]), codes=content["codes"])


def _rule(*, name: str, pattern: str, fault: str, remedy: str, examples: list[Any]) -> Rule:
    return Rule(
        name=name, pattern=re.compile(pattern), fault=Fault(fault), remedy=remedy, examples=tuple(map(str, examples))
    )


def not_started(container: ContainerSpec, said: str, code: int | None) -> Failure:
    """Classify a client that ended with an error before the engine ran: never the candidate's fault."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    known = next(((rule, line) for line in lines for rule in knowledge().rules if rule.pattern.search(line)), None)
    if known is not None:
        rule, line = known
        return _failure(rule.fault, f"{container.runtime}: {line}", _filled(rule.remedy, container))
    meaning = knowledge().codes.get(code or 0, "it could not be asked")
    last = lines[0] if lines else "it says nothing"
    remedy = f"try it by hand: {container.runtime} run {container.image}"
    return _failure(Fault.SETUP, f"{container.runtime}: {meaning} (exit code {code}): {last}", remedy)


def no_runtime(container: ContainerSpec) -> Failure:
    """The client isn't installed."""
    return _failure(
        Fault.SETUP,
        f"there is no program `{container.runtime}` on the PATH",
        "install it, or set engine.container.runtime to the other of docker and podman",
    )


def killed_for_memory(phase: Phase) -> Failure:
    """The kernel killed it at its memory limit or the host's: whose memory that was, the flag does not say."""
    return Failure(
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.ENVIRONMENT,
        phase=phase,
        cause="the container was killed for want of host memory (OOMKilled)",
        remedy="raise --memory in engine.container.options, or free memory of the host; pages in /dev/shm count too",
    )


def _filled(remedy: str, container: ContainerSpec) -> str:
    return remedy.replace("{image}", container.image).replace("{runtime}", container.runtime)


def _failure(fault: Fault, cause: str, remedy: str) -> Failure:
    cut = cause if len(cause) <= CAUSE_CHARS else cause[: CAUSE_CHARS - 1] + "…"
    return Failure(outcome=Outcome.ENVIRONMENT, fault=fault, phase=Phase.LAUNCH, cause=cut, remedy=remedy)
