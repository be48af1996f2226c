"""`autotune show RUN`: the verdict in words, the table, why trials failed, and the files; or the same as JSON."""

from __future__ import annotations

import json
import sys
from typing import Any, TextIO

from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from autotune.records.trial import TrialRecord
from autotune.report.table import excerpt, trial_table
from autotune.report.verdict import (
    FailureGroup,
    banners,
    details,
    failure_groups,
    files,
    headline,
    next_steps,
    untrusted,
)
from autotune.report.view import RunView, metric_of, read_view, side_metric
from autotune.report.words import OUTCOME_MEANING, differing, number_list, one_line, plain
from autotune.trial.store import RunDirectory, to_json

SHOWN_AT_MOST = 200
"""Rows beyond this are noise on a terminal: the page and `--json` have them all."""

SHOW_SCHEMA_VERSION = 1


def show(run: RunDirectory, console: Console | None = None) -> None:
    """Print what a run has found, on stdout unless told otherwise. Raises InputError when this is no run."""
    (console or Console()).print(render(run))


def show_json(run: RunDirectory, file: TextIO | None = None) -> None:
    """Print the same for programs, on stdout unless told otherwise. Raises InputError when this is no run."""
    print(json.dumps(as_dict(run), indent=2), file=file or sys.stdout)


def render(run: RunDirectory) -> RenderableType:
    """Return what `show` prints: table, failures, and where a terminal leaves the eye the verdict and the files."""
    view = read_view(run)
    parts: list[RenderableType] = [Text(f"Study {plain(view.spec.name)}", style="bold")]
    parts += [Text(line, style="bold black on yellow") for line in banners(view)]
    if view.trials:
        parts += [Text(), trial_table(view, trials=excerpt(view, SHOWN_AT_MOST)), *_left_out(view)]
    parts += _section("Why trials failed", [_failure_text(group) for group in failure_groups(view.trials)])
    parts += _section("Not trusted, so never handed over", [Text(line) for line in untrusted(view.trials)])
    parts += [Text(), Text(headline(view), style="bold"), *(Text(line) for line in details(view))]
    parts += _section("Files", [Text(f"{what}: {plain(path)}") for what, path in files(view).items()])
    parts += _section("Next", [Text(plain(step)) for step in next_steps(view)])
    return Group(*parts)


def as_dict(run: RunDirectory) -> dict[str, Any]:
    """Return what `show_json` prints: the summary, each trial in short, failures and files."""
    view = read_view(run)
    return {
        "schema_version": SHOW_SCHEMA_VERSION,
        "study": view.spec.name,
        "simulated": view.simulated,
        "confirmed": view.confirmed,
        "verdict": headline(view),
        "details": details(view),
        "best": view.best.number if view.best else None,
        "nearest": view.nearest.number if view.nearest else None,
        "reference": view.reference.number if view.reference else None,
        "summary": json.loads(to_json(view.summary)) if view.summary else None,
        "trials": [_short(view, trial) for trial in view.trials],
        "failures": [json.loads(to_json(group)) for group in failure_groups(view.trials)],
        "files": dict(files(view)),
    }


def _short(view: RunView, trial: TrialRecord) -> dict[str, Any]:
    whole = json.loads(to_json(trial))
    kept = (
        "number",
        "role",
        "outcome",
        "args",
        "fingerprint",
        "objective",
        "verdict",
        "diagnosis",
        "failure",
        "quality",
        "startup_s",
        "startup_kind",
        "wall_s",
    )
    side = side_metric(view.spec)
    estimate = metric_of(trial, side)
    return {
        **{name: whole[name] for name in kept},
        "meaning": OUTCOME_MEANING[trial.outcome],
        "differs": differing(trial, view.reference_for(trial)),
        "beside": {"metric": side, "estimate": json.loads(to_json(estimate)) if estimate else None},
    }


def _failure_text(group: FailureGroup) -> Text:
    which = "trial" if len(group.trials) == 1 else "trials"
    text = Text(f"{which} {number_list(group.trials)}: {OUTCOME_MEANING[group.outcome]}", style="bold")
    if group.cause != OUTCOME_MEANING[group.outcome]:
        text.append(f"\ncause: {one_line(group.cause)}", style="not bold")
    if group.remedy:
        text.append(f"\nremedy: {plain(group.remedy)}", style="not bold")
    return text


def _section(title: str, lines: list[Text]) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *(Padding(line, (0, 0, 0, 2)) for line in lines)] if lines else []


def _left_out(view: RunView) -> list[Text]:
    hidden = len(view.trials) - len(excerpt(view, SHOWN_AT_MOST))
    return (
        [Text(f"  {hidden} older trials are not shown; the report and --json have them", style="dim")] if hidden else []
    )
