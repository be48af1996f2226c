"""Every error that autotune raises on purpose.

    AutotuneError            message + hint; the exit code it ends the program with
    ├── InputError           the user's files or options can't be used            exit 2
    │   └── StudyFileError   a study file, space or objective has problems        exit 2
    ├── EnvironmentFault     the machine, engine set-up or network prevents work  exit 4
    └── Interrupted          Ctrl-C, or the signal of a scheduler                 exit 130

A trial that fails is not an error: it is an `Outcome` in its `TrialRecord`. Neither is a study in which nothing met the
objective: it ends as it should, with exit code 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum


class ExitCode(IntEnum):
    """What the command line ends with; pipelines branch on these."""

    OK = 0
    BAD_INPUT = 2
    NOTHING_FEASIBLE = 3
    ENVIRONMENT = 4
    INTERRUPTED = 130


class AutotuneError(Exception):
    """Base of the tree: what happened, and what to do about it."""

    exit_code = ExitCode.ENVIRONMENT

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


class InputError(AutotuneError):
    exit_code = ExitCode.BAD_INPUT


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with a study: where (key path from the study's root), what, and what to do."""

    path: tuple[str | int, ...]
    message: str
    hint: str = ""


class StudyFileError(InputError):
    """All problems of a study file at once, each line as `file:line: key: problem; hint`."""

    def __init__(self, lines: Sequence[str]) -> None:
        super().__init__("\n".join(lines))
        self.lines = tuple(lines)


class EnvironmentFault(AutotuneError):
    exit_code = ExitCode.ENVIRONMENT


class Interrupted(AutotuneError):
    exit_code = ExitCode.INTERRUPTED
