"""The table of trials on a terminal: records in, a rich renderable out. Names and values are legible at 80 columns."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from autotune.records.finals import FinalRun
from autotune.records.trial import Outcome, Role, TrialRecord
from autotune.report.view import RunView, metric_of, side_metric
from autotune.report.words import (
    ABSENT,
    OUTCOME_WORDS,
    differing,
    figure,
    metric_label,
    plain,
    plus_minus,
    startup_text,
)

NEVER_SHORTENED = 1_000_000
NO_BREAK = "\u00a0"
_COLOURS = {Outcome.OK: "green", Outcome.SLO_MISS: "yellow", Outcome.UNSURE: "cyan", Outcome.INTERRUPTED: "dim"}


def trial_table(
    view: RunView, *, trials: Sequence[TrialRecord] | None = None, max_differences: int = NEVER_SHORTENED
) -> Table:
    """Return the table of `trials` (default: all of the run), one row each, best and reference marked.

    A row lists at most `max_differences` arguments that differ from the reference's, then `+N more`.
    """
    objective, side = view.spec.objective.metric, side_metric(view.spec)
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False, expand=False)
    table.add_column("trial", justify="right", no_wrap=True)
    table.add_column("differs from reference", overflow="fold")
    table.add_column(_stacked(metric_label(objective)), justify="right", no_wrap=True)
    table.add_column(_stacked(metric_label(side)), justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    table.add_column("start", justify="right", no_wrap=True)
    for trial in view.trials if trials is None else trials:
        table.add_row(*_cells(view, trial, side, max_differences), style=_row_style(view, trial))
    return table


def _cells(view: RunView, trial: TrialRecord, side: str, max_differences: int) -> list[Text]:
    measured = metric_of(trial, side)
    return [
        Text(f"{'★ ' if _is(trial, view.best) else ''}{trial.number}"),
        Text(difference_text(view, trial, max_differences)),
        Text(plus_minus(trial.objective)),
        Text(figure(measured.value if measured else None)),
        outcome_text(trial),
        Text(startup_text(trial.startup_s, trial.startup_kind) or ABSENT),
    ]


def difference_text(view: RunView, trial: TrialRecord, max_differences: int = NEVER_SHORTENED) -> str:
    """Return what differs from the reference in pairs parted by spaces; the reference itself is called so."""
    if trial.final is not None:
        return final_text(trial.final)
    if _is(trial, view.reference_for(trial)):
        return "(reference)" if trial.engine is None else f"(reference) engine={plain(trial.engine)}"
    pairs = differing(trial, view.reference_for(trial))
    if not pairs:
        return "(as reference)"
    hidden = len(pairs) - max_differences
    if hidden > 0:
        pairs = [*pairs[:max_differences], f"+{hidden}{NO_BREAK}more"]
    text = " ".join(pairs)
    return f"(reference tried) {text}" if trial.role is Role.REFERENCE else text


def final_text(final: FinalRun) -> str:
    """Return what a launch after the search was for."""
    return f"(trial {final.of} again, {f'round {final.round}' if final.round else final.stage.value})"


def outcome_text(trial: TrialRecord) -> Text:
    """Return the outcome in words; the colour only repeats them."""
    return Text(OUTCOME_WORDS[trial.outcome], style=_COLOURS.get(trial.outcome, "red"))


def excerpt(view: RunView, last: int) -> list[TrialRecord]:
    """Return the last few trials, with best and reference in front when they are older."""
    recent = list(view.trials[-last:])
    shown = {trial.number for trial in recent}
    kept = {t.number: t for t in (view.reference, view.best) if t is not None and t.number not in shown}
    return [*sorted(kept.values(), key=lambda trial: trial.number), *recent]


def _stacked(label: str) -> str:
    """A heading on two lines leaves the width to names and values."""
    first, _, rest = label.partition(" ")
    return f"{first}\n{rest}" if rest else first


def _row_style(view: RunView, trial: TrialRecord) -> str:
    return "bold" if _is(trial, view.best) else ""


def _is(trial: TrialRecord, other: TrialRecord | None) -> bool:
    return other is not None and trial.number == other.number
