"""Why a variant could not be made: by the log of its command, or by what the command left."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.engines import failures
from autotune.engines.failures import LogReader
from autotune.records.trial import Failure, Fault, Outcome, Phase


def _lines(log_text: str, _counted: re.Pattern[str]) -> Iterator[str]:
    return (line for raw in log_text.splitlines() if (line := raw.strip()))


def _edges(_log_text: str) -> dict[str, float]:
    return {}


READER = LogReader(
    package="autotune.engines.variants",
    lines=_lines,
    edges=_edges,
    error=re.compile(r"^(?:[\w.]+: )?[\w.]*(?:Error|Exception)\b(?::|$)|^\[?(?:error|fatal)\b", re.IGNORECASE),
)


def failed(name: str, exit_code: int | None, log_text: str) -> Failure:
    """Classify the end of a command by its log; a cause that no rule knows is still this variant's own."""
    found = failures.diagnose(READER, exit_code, Phase.LAUNCH, log_text)
    known = found.outcome is not Outcome.UNKNOWN
    return replace(
        found,
        outcome=found.outcome if known else Outcome.LAUNCH_FAILED,
        phase=Phase.PREPARE,
        cause=_said(name, found.cause.removesuffix(f" (exit code {exit_code})"), exit_code),
        remedy=found.remedy if known else "it is not tried again in this study",
    )


def not_started(name: str, error: str) -> Failure:
    """The command's program could not be started."""
    return _own(
        name, Outcome.LAUNCH_FAILED, f"its command could not be started: {error}", "check its program", setup=True
    )


def too_slow(name: str, timeout_s: float, last: str) -> Failure:
    """The command did not end in time."""
    cause = f"not made after {timeout_s:g} s; last line: {last or '(none)'}"
    return _own(name, Outcome.READY_TIMEOUT, cause, f"raise variants.{name}.timeout_s")


def not_whole(name: str, faults: Sequence[str]) -> Failure:
    """The command ended well, but what it left is no checkpoint."""
    cause = f"its command ended with exit code 0, but {'; '.join(faults)}"
    return _own(name, Outcome.LAUNCH_FAILED, cause, "have the command write a whole checkpoint to {output}")


def _own(name: str, outcome: Outcome, cause: str, remedy: str, *, setup: bool = False) -> Failure:
    fault = Fault.SETUP if setup else Fault.CANDIDATE
    return Failure(outcome=outcome, fault=fault, phase=Phase.PREPARE, cause=_said(name, cause, None), remedy=remedy)


def _said(name: str, cause: str, exit_code: int | None) -> str:
    ended = "" if exit_code is None else f" (exit code {exit_code})"
    return f"variant {name} could not be made: {cause}{ended}"
