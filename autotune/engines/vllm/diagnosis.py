"""Why a vLLM ended: the first error line that is a cause, matched against the rules of failures.yaml."""

# ruff: noqa: ANN401  rows of a YAML file

from __future__ import annotations

import re
import signal
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.records.trial import Failure, Fault, Outcome, Phase

_PREFIX = re.compile(r"^\(\w[\w-]* pid=\d+\) (?:(?:ERROR|CRITICAL) [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
_OTHER_LEVEL = re.compile(r"^\(\w[\w-]* pid=\d+\) (?:INFO|WARNING|DEBUG) ")
_ERROR = re.compile(
    r"^[\w.]*(?:Error|Exception|Interrupt|NotSupported|OfflineModeIsEnabled)\b(?::|$)"  # a traceback's last line
    r"|^\s*Value error, |: error: |died unexpectedly|out of memory|OutOfMemory",
)
CAUSE_CHARS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of failures.yaml."""

    name: str
    pattern: re.Pattern[str]
    outcome: Outcome
    under_load: Outcome
    fault: Fault
    remedy: str
    examples: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    rules: tuple[Rule, ...]
    generic: re.Pattern[str]
    last_resort: re.Pattern[str]


@cache
def knowledge() -> Knowledge:
    """The rules, read once."""
    import yaml  # noqa: PLC0415  only a failure needs it

    text = resources.files("autotune.engines.vllm").joinpath("failures.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return Knowledge(
        rules=tuple(_rule(**row) for row in content["rules"]),
        generic=_any_of(content["generic"]),
        last_resort=_any_of(content["last_resort"]),
    )


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _rule(*, outcome: str, fault: str, pattern: str, under_load: str | None = None, **rest: Any) -> Rule:
    return Rule(
        name=rest["name"],
        pattern=re.compile(pattern),
        outcome=Outcome(outcome),
        under_load=Outcome(under_load or outcome),
        fault=Fault(fault),
        remedy=rest["remedy"],
        examples=tuple(rest["examples"]),
    )


def diagnose(exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of a vLLM by its log; `exit_code` None: it hangs or was not asked. Pure."""
    causes = list(root_errors(log_text))
    for cause in causes:
        rule = next((rule for rule in knowledge().rules if rule.pattern.search(cause)), None)
        if rule is not None:
            outcome = rule.outcome if phase is Phase.LAUNCH else rule.under_load
            return Failure(outcome=outcome, fault=rule.fault, phase=phase, cause=_cut(cause), remedy=rule.remedy)
    return _unclassified(exit_code, phase, causes, log_text)


def _unclassified(exit_code: int | None, phase: Phase, causes: Sequence[str], log_text: str) -> Failure:
    if exit_code == -signal.SIGKILL and not causes:
        return Failure(
            outcome=Outcome.ENVIRONMENT,
            fault=Fault.ENVIRONMENT,
            phase=phase,
            cause="the engine was killed (SIGKILL) by something outside",
            remedy="look for the kernel's OOM killer (dmesg): the host may be short of memory",
        )
    last = next((line.strip() for line in reversed(log_text.splitlines()) if line.strip()), "the log is empty")
    ended = "" if exit_code is None else f" (exit code {exit_code})"
    return Failure(
        outcome=Outcome.UNKNOWN if phase is Phase.LAUNCH else Outcome.CRASHED_UNDER_LOAD,
        fault=Fault.CANDIDATE,
        phase=phase,
        cause=_cut(causes[0] if causes else last) + ended,
        remedy="read the engine's log; a rule for this line can be added to failures.yaml",
    )


def root_errors(log_text: str) -> Iterator[str]:
    """Error lines that are causes, first first; the ones that are only ever a last resort come last."""
    seen: list[str] = []
    for line in _error_lines(log_text.splitlines()):
        if line not in seen and not knowledge().generic.search(line):
            seen.append(line)
    late = knowledge().last_resort
    yield from (line for line in seen if not late.search(line))
    yield from (line for line in seen if late.search(line))


def _error_lines(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        if _OTHER_LEVEL.match(line):
            continue
        text = _PREFIX.sub("", line).rstrip()
        if _ERROR.search(text):
            yield text.strip()


def _cut(text: str) -> str:
    return text if len(text) <= CAUSE_CHARS else text[: CAUSE_CHARS - 1] + "…"
