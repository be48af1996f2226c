"""The live view of a running study, on stderr: a table that redraws on a terminal, one plain line an event elsewhere.

The pipeline tells it what happens; it asks nothing and changes nothing.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autotune.records.spec import StudySpec
from autotune.records.trial import Candidate, Outcome, Role, TrialRecord
from autotune.report.table import excerpt, trial_table
from autotune.report.verdict import banners
from autotune.report.view import RunView, make_view, metric_of, own_reference, side_metric
from autotune.report.words import (
    OUTCOME_MEANING,
    differing,
    duration,
    figure,
    leader,
    metric_label,
    one_line,
    plain,
    plus_minus,
)

RECENT_TRIALS = 12
_LINES_AROUND_TABLE = 7
_REDRAWS_PER_S = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTrial:
    """What runs now. `began_s` and `phase_began_s` are on the view's clock."""

    number: int
    role: Role
    differences: tuple[str, ...]
    phase: str
    began_s: float
    phase_began_s: float

    @property
    def what(self) -> str:
        """The configuration in a line."""
        if self.role is Role.REFERENCE:
            return " ".join(["reference", *(pair for pair in self.differences if pair.startswith("engine="))])
        return " ".join(self.differences) or "as reference"


class LiveView:
    """Context manager that shows a study while it runs; `finished` are the trials of a run that is resumed.

    Outside a terminal (a pipe, TERM=dumb, CI) it prints plain lines without control characters.
    """

    def __init__(
        self,
        spec: StudySpec,
        finished: Sequence[TrialRecord] = (),
        *,
        console: Console | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._spec = spec
        self._trials = list(finished)
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._began_s = clock()
        self._current: CurrentTrial | None = None
        self._redraws = self._console.is_terminal and environ.get("TERM") != "dumb" and not environ.get("CI")
        self._live: Live | None = None

    def __enter__(self) -> Self:
        if not self._redraws:  # the redrawn view carries them itself
            for line in banners(self._view()):
                self._print(line)
        if self._redraws:
            self._live = Live(console=self._console, get_renderable=self.render, refresh_per_second=_REDRAWS_PER_S)
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._current = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def phase(self, number: int, candidate: Candidate, text: str) -> None:
        """Tell that a trial entered the phase called `text`."""
        now, current = self._clock(), self._current
        began_s = current.began_s if current is not None and current.number == number else now
        self._current = CurrentTrial(
            number=number,
            role=candidate.role,
            differences=tuple(differing(candidate, own_reference(self._trials, candidate, None))),
            phase=plain(text),
            began_s=began_s,
            phase_began_s=now,
        )
        if not self._redraws:
            self._print(f"trial {number}, {self._current.what}: {self._current.phase}")

    def finished(self, record: TrialRecord) -> None:
        """Tell that a trial's record is written."""
        self._trials.append(record)
        self._current = None
        if not self._redraws:
            self._print(finished_line(self._spec, self._trials, record))

    def message(self, text: str) -> None:
        """Show a line that stays."""
        self._print(plain(text))

    def render(self) -> RenderableType:
        """Return the view as it is now: table, what runs, best so far, time left."""
        view = self._view()
        parts: list[RenderableType] = [Text(line, style="bold black on yellow") for line in banners(view)]
        height = self._console.height - _LINES_AROUND_TABLE
        shown = excerpt(view, max(1, min(RECENT_TRIALS, height - 2)))
        if shown:
            room = max(1, height // len(shown))
            parts.append(trial_table(view, trials=shown, max_differences=room))
        if self._current is not None:
            parts.append(self._now_text(self._current))
        return Group(*parts, Text(self._progress_text()))

    def _now_text(self, current: CurrentTrial) -> Text:
        now = self._clock()
        text = Text(f"trial {current.number} · {current.phase} {duration(now - current.phase_began_s)}", style="bold")
        text.append(f" · trial {duration(now - current.began_s)}", style="not bold dim")
        return text.append(f"\n  {current.what}", style="not bold")

    def _progress_text(self) -> str:
        parts = [f"{launches(self._trials)} of {self._spec.budget.trials} trials", best_text(self._spec, self._trials)]
        left = time_left_s(self._spec, self._trials, self._clock() - self._began_s)
        return " · ".join([*parts, *([] if left is None else [f"about {duration(left)} left at most"])])

    def _view(self) -> RunView:
        return make_view(Path(), self._spec, self._trials)

    def _print(self, line: str) -> None:
        if self._redraws:
            self._console.print(Text(line))
        else:
            with suppress(OSError):  # nobody reads on (`| head`, a closed terminal): no reason to end the study
                self._console.file.write(line + "\n")
                self._console.file.flush()


def launches(trials: Sequence[TrialRecord]) -> int:
    """Return how many trials counted against the budget: those that were launched, finals apart."""
    return sum(trial.outcome is not Outcome.RULED_OUT and trial.final is None for trial in trials)


def time_left_s(spec: StudySpec, trials: Sequence[TrialRecord], elapsed_s: float) -> float | None:
    """Return seconds until the budget is spent: trials left times the median trial, or the hours left if that is less.

    None while neither is known: no trial was launched yet and the study has no time limit.
    """
    walls = [trial.wall_s for trial in trials if trial.outcome is not Outcome.RULED_OUT and trial.wall_s > 0]
    bounds = []
    if walls:
        bounds.append(max(0, spec.budget.trials - launches(trials)) * statistics.median(walls))
    if spec.budget.hours is not None:
        bounds.append(max(0.0, spec.budget.hours * 3600 - elapsed_s))
    return min(bounds) if bounds else None


def best_text(spec: StudySpec, trials: Sequence[TrialRecord]) -> str:
    """Return `best so far: trial 5, 312 ±19 output tok/s`."""
    best = leader(trials, spec.objective.direction)
    if best is None:
        return "nothing meets the SLO yet"
    return f"best so far: trial {best.number}, {plus_minus(best.objective)} {metric_label(spec.objective.metric)}"


def finished_line(spec: StudySpec, trials: Sequence[TrialRecord], record: TrialRecord) -> str:
    """Return the plain line that tells a finished trial: outcome, figures or cause, and the best so far."""
    parts = [f"trial {record.number}: {OUTCOME_MEANING[record.outcome]}"]
    if record.objective is not None:
        parts.append(f"{plus_minus(record.objective)} {metric_label(spec.objective.metric)}")
    side = metric_of(record, side_metric(spec))
    if side is not None:
        parts.append(f"{figure(side.value)} {metric_label(side_metric(spec))}")
    if record.failure is not None:
        parts.append(one_line(record.failure.cause))
    return "; ".join([*parts, best_text(spec, trials)])
