"""Why an engine ended: the first line of its log that is a cause, by the rules of its failures.yaml."""

# ruff: noqa: ANN401  rows of a YAML file

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.records.trial import Failure, Fault, Outcome, Phase

CAUSE_CHARS = 400
_CRASHES = frozenset(
    {signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGTRAP, signal.SIGSYS}
)
"""Signals that a process brings upon itself; any other comes from outside."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogReader:
    """How the log of one kind of engine is read.

    `package` holds its failures.yaml; `lines` yields what may tell a cause (the quiet lines that count by a pattern),
    `edges` the figures that a log names; `error` knows a line that ends in an error which no rule may know.
    """

    package: str
    lines: Callable[[str, re.Pattern[str]], Iterator[str]]
    edges: Callable[[str], dict[str, float]]
    error: re.Pattern[str]


@cache
def knowledge_of(package: str) -> Knowledge:
    """The rules of an engine, read once."""
    import yaml  # noqa: PLC0415  only a failure needs it

    text = resources.files(package).joinpath("failures.yaml").read_text(encoding="utf-8")
    content = yaml.safe_load(text)
    return Knowledge(
        rules=tuple(_rule(**row) for row in content["rules"]),
        signs=tuple(_rule(**row) for row in content["signs"]),
        generic=_any_of(content["generic"]),
        quiet=_any_of(content["quiet"]),
    )


def _any_of(patterns: Sequence[str]) -> re.Pattern[str]:
    return re.compile("|".join(f"(?:{pattern})" for pattern in patterns) or r"(?!)")  # of none, never


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


def diagnose(reader: LogReader, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
    """Classify the end of an engine by its log; `exit_code` None: it hangs or was not asked. Pure.

    A cause that a rule knows comes first, wherever it stands; then an error that no rule knows; then what is often a
    consequence. So the worker that died of an unknown error teaches nothing, and out of memory is no network error.
    Nor does a death without a word teach: that of a process killed from outside looks the same.
    """
    known = knowledge_of(reader.package)
    lines = _lines(reader, log_text)
    errors = [line for line in lines if reader.error.search(line) and not _first(known.signs, (line,), log_text)]
    found = _first(known.rules, lines, log_text)
    if found is None and not errors:
        found = _first(known.signs, lines, log_text)
    if found is None:
        return _unclassified(reader, exit_code, phase, errors, log_text)
    return _failure(reader, *found, phase, log_text)


def known_cause(reader: LogReader, phase: Phase, log_text: str) -> Failure | None:
    """What a log tells of an engine that has not ended, None when no rule knows a line of it."""
    found = _first(knowledge_of(reader.package).rules, _lines(reader, log_text), log_text)
    return None if found is None else _failure(reader, *found, phase, log_text)


def _lines(reader: LogReader, log_text: str) -> list[str]:
    known = knowledge_of(reader.package)
    return [line for line in reader.lines(log_text, known.quiet) if not known.generic.search(line)]


def _failure(reader: LogReader, rule: Rule, line: str, phase: Phase, log_text: str) -> Failure:
    return Failure(
        outcome=rule.outcome if phase is Phase.LAUNCH else rule.under_load,
        fault=rule.fault,
        phase=phase,
        cause=_cut(line),
        remedy=rule.remedy,
        edges=reader.edges(log_text),
    )


def _first(rules: Sequence[Rule], lines: Sequence[str], log_text: str) -> tuple[Rule, str] | None:
    fitting = ((rule, line) for line in lines for rule in rules if rule.fits(line, log_text))
    return next(fitting, None)


def _unclassified(
    reader: LogReader, exit_code: int | None, phase: Phase, errors: Sequence[str], log_text: str
) -> Failure:
    number = _signal_of(exit_code)
    if not errors and number is not None and number not in _CRASHES:
        return _signalled(number, phase)
    last = next((line.strip() for line in reversed(log_text.splitlines()) if line.strip()), "the log is empty")
    ended = "" if exit_code is None else f" (exit code {exit_code})"
    told = bool(errors) or number is not None  # who ends without a word may have been ended by anybody
    return Failure(
        outcome=Outcome.CRASHED_UNDER_LOAD if told and phase is not Phase.LAUNCH else Outcome.UNKNOWN,
        fault=Fault.CANDIDATE,
        phase=phase,
        cause=_cut(errors[0] if errors else last) + ended,
        remedy="read the engine's log; a rule for this line can be added to failures.yaml",
        edges=reader.edges(log_text),
    )


def _signal_of(exit_code: int | None) -> signal.Signals | None:
    """The signal that an exit code stands for; a container's runtime gives 128 + its number."""
    number = 0 if exit_code is None else -exit_code if exit_code < 0 else exit_code - 128
    return signal.Signals(number) if number in {*signal.Signals} else None


def _signalled(number: signal.Signals, phase: Phase) -> Failure:
    """Something outside ended the engine, which left no word of a cause."""
    killed = number is signal.SIGKILL
    remedy = (
        "look for who killed it: earlyoom or systemd-oomd if the host is short of memory; "
        "the kernel's own OOM killer would have been counted"
    )
    return Failure(
        outcome=Outcome.ENVIRONMENT if killed else Outcome.INTERRUPTED,
        fault=Fault.ENVIRONMENT,
        phase=phase,
        cause=f"the engine was {'killed' if killed else 'told to stop'} ({number.name}) by something outside",
        remedy=remedy if killed else "something sent the engine a signal; start it again",
    )


def _cut(text: str) -> str:
    return text if len(text) <= CAUSE_CHARS else text[: CAUSE_CHARS - 1] + "…"
