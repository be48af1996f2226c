"""Why a vLLM ended: the first line of its log that is a cause, by the rules of failures.yaml."""

# ruff: noqa: ANN401  rows of a YAML file

from __future__ import annotations

import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.engines.vllm.edges import edges
from autotune.engines.vllm.lines import telling_lines
from autotune.records.trial import Failure, Fault, Outcome, Phase

_ERROR = re.compile(
    r"^[\w.]*(?:Error|Exception|Interrupt|NotSupported|OfflineModeIsEnabled)\b(?::|$)"  # a traceback's last line
    r"|^Value error, |: error: ",
)
CAUSE_CHARS = 400
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)  # a container's runtime gives 128 + the signal
_STOPPED = (-signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGINT, 128 + signal.SIGINT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One row of failures.yaml."""

    name: str
    pattern: re.Pattern[str]
    where: str | None
    log: re.Pattern[str] | None
    outcome: Outcome
    under_load: Outcome
    fault: Fault
    remedy: str
    examples: tuple[str, ...]
    example_log: str

    def fits(self, line: str, log_text: str) -> bool:
        """Whether the rule knows this line of this log."""
        match = self.pattern.search(line)
        if match is None or (self.log is not None and not self.log.search(log_text)):
            return False
        return self.where is None or _holds(self.where, match.groupdict())


@dataclass(frozen=True, slots=True, kw_only=True)
class Knowledge:
    """failures.yaml: `rules` know causes, `signs` what is often only a consequence, `generic` what always is."""

    rules: tuple[Rule, ...]
    signs: tuple[Rule, ...]
    generic: re.Pattern[str]
    quiet: re.Pattern[str]


@cache
def knowledge() -> Knowledge:
    """The rules, read once."""
    import yaml  # noqa: PLC0415  only a failure needs it

    text = resources.files("autotune.engines.vllm").joinpath("failures.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return Knowledge(
        rules=tuple(_rule(**row) for row in content["rules"]),
        signs=tuple(_rule(**row) for row in content["signs"]),
        generic=_any_of(content["generic"]),
        quiet=_any_of(content["quiet"]),
    )


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns))


def _rule(*, outcome: str, fault: str, pattern: str, under_load: str | None = None, **rest: Any) -> Rule:
    return Rule(
        name=rest["name"],
        pattern=re.compile(pattern),
        where=rest.get("where"),
        log=re.compile(rest["log"]) if "log" in rest else None,
        outcome=Outcome(outcome),
        under_load=Outcome(under_load or outcome),
        fault=Fault(fault),
        remedy=rest["remedy"],
        examples=tuple(rest["examples"]),
        example_log=rest.get("example_log", ""),
    )


def _holds(condition: str, numbers: Mapping[str, str | None]) -> bool:
    from simpleeval import simple_eval  # noqa: PLC0415  few rules have a condition

    return bool(simple_eval(condition, names={name: float(text) for name, text in numbers.items() if text}))


def diagnose(exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of a vLLM by its log; `exit_code` None: it hangs or was not asked. Pure.

    A cause that a rule knows comes first, wherever it stands; then an error that no rule knows; then what is often a
    consequence. So the worker that died of an unknown error teaches nothing, and out of memory is no network error.
    """
    lines = _lines(log_text)
    errors = [line for line in lines if _ERROR.search(line) and not _first(knowledge().signs, (line,), log_text)]
    found = _first(knowledge().rules, lines, log_text)
    if found is None and not errors:
        found = _first(knowledge().signs, lines, log_text)
    if found is None:
        return _unclassified(exit_code, phase, errors, log_text)
    return _failure(*found, phase, log_text)


def known_cause(phase: Phase, log_text: str) -> Failure | None:
    """What a log tells of an engine that has not ended, None when no rule knows a line of it."""
    found = _first(knowledge().rules, _lines(log_text), log_text)
    return None if found is None else _failure(*found, phase, log_text)


def _lines(log_text: str) -> list[str]:
    known = knowledge()
    return [line for line in telling_lines(log_text, known.quiet) if not known.generic.search(line)]


def _failure(rule: Rule, line: str, phase: Phase, log_text: str) -> Failure:
    return Failure(
        outcome=rule.outcome if phase is Phase.LAUNCH else rule.under_load,
        fault=rule.fault,
        phase=phase,
        cause=_cut(line),
        remedy=rule.remedy,
        edges=edges(log_text),
    )


def _first(rules: Sequence[Rule], lines: Sequence[str], log_text: str) -> tuple[Rule, str] | None:
    fitting = ((rule, line) for line in lines for rule in rules if rule.fits(line, log_text))
    return next(fitting, None)


def _unclassified(exit_code: int | None, phase: Phase, errors: Sequence[str], log_text: str) -> Failure:
    if not errors and exit_code in _KILLED + _STOPPED:
        return _signalled(exit_code in _KILLED, phase)
    last = next((line.strip() for line in reversed(log_text.splitlines()) if line.strip()), "the log is empty")
    ended = "" if exit_code is None else f" (exit code {exit_code})"
    return Failure(
        outcome=Outcome.UNKNOWN if phase is Phase.LAUNCH else Outcome.CRASHED_UNDER_LOAD,
        fault=Fault.CANDIDATE,
        phase=phase,
        cause=_cut(errors[0] if errors else last) + ended,
        remedy="read the engine's log; a rule for this line can be added to failures.yaml",
        edges=edges(log_text),
    )


def _signalled(killed: bool, phase: Phase) -> Failure:
    """Something outside ended the engine, which left no word of a cause."""
    remedy = "look for the kernel's OOM killer (dmesg): the host may be short of memory"
    return Failure(
        outcome=Outcome.ENVIRONMENT if killed else Outcome.INTERRUPTED,
        fault=Fault.ENVIRONMENT,
        phase=phase,
        cause=f"the engine was {'killed (SIGKILL)' if killed else 'told to stop'} by something outside",
        remedy=remedy if killed else "something sent the engine a signal; start it again",
    )


def _cut(text: str) -> str:
    return text if len(text) <= CAUSE_CHARS else text[: CAUSE_CHARS - 1] + "…"
