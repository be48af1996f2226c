"""The tables of the page: what was found, each trial, why some failed, what it ran on, how to do it again."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from autotune.records.metrics import known_names
from autotune.records.spec import Bound, FixedLength, Length, LogNormalLength
from autotune.records.trial import Estimate, Outcome, TrialRecord
from autotune.report.counters import counter_rows, notes
from autotune.report.loads import load_text, workload_text
from autotune.report.verdict import FailureGroup, failure_groups
from autotune.report.view import RunView, metric_of, side_metric
from autotune.report.words import (
    OUTCOME_MEANING,
    OUTCOME_WORDS,
    differing,
    figure,
    metric_label,
    number_list,
    plain,
    startup_text,
    value_text,
    with_interval,
)
from autotune.trial.differences import flatten

_ALWAYS_SHOWN = ("output_tok_per_s", "request_rps", "ttft_ms.p99", "tpot_ms.p99", "e2e_ms.p99", "error_ratio")


def results(view: RunView) -> str:
    """Return the chosen trial beside the reference: figures with intervals, then arguments."""
    chosen = view.best or view.nearest
    columns = [(word, trial) for word, trial in ((_chosen_word(view), chosen), ("reference", view.reference)) if trial]
    if not columns:
        return ""
    if len(columns) == 2 and columns[0][1].number == columns[1][1].number:
        columns = [(f"{columns[0][0]}, which is the reference", columns[0][1])]
    heads = [f"{word}: trial {trial.number}" for word, trial in columns]
    figures = [
        [
            _text(_metric_title(view, name)),
            *(_text(_figure_of(view, trial, name)) for _, trial in columns),
            _limit(view, name),
        ]
        for name in _metrics(view, [trial for _, trial in columns])
    ]
    table = _table(["", *heads, "SLO"], figures)
    return f'<section id="result"><h2>Result</h2>{table}{_audit(columns)}{_arguments(columns)}</section>'


def trials_table(view: RunView) -> str:
    """Return every trial, a row each; the script of the page sorts it by the heading clicked."""
    if not view.trials:
        return ""
    objective, side = view.spec.objective.metric, side_metric(view.spec)
    heads = [
        "trial",
        "",
        "verdict",
        metric_label(objective),
        metric_label(side),
        "start-up",
        "differs from reference",
    ]
    head = "".join(f"<th{_number_class(i)}><button>{escape(name)}</button></th>" for i, name in enumerate(heads))
    rows = "".join(_trial_row(view, trial, side) for trial in view.trials)
    return (
        '<section id="trials"><h2>Trials</h2><p class="note">Click a heading to sort.</p><div class="wide">'
        f'<table class="sortable"><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div></section>'
    )


def failures(view: RunView) -> str:
    """Return why trials gave no measurement, those alike together, with the log's end of the first."""
    groups = failure_groups(view.trials)
    if not groups:
        return ""
    logs = {trial.number: trial.log_tail for trial in view.trials}
    return (
        '<section id="failures"><h2>Why trials failed</h2>' + "".join(_failure(g, logs) for g in groups) + "</section>"
    )


def environment(view: RunView) -> str:
    """Return what it ran on: engine, hardware, workload, load and versions."""
    spec = view.spec
    gpus = "not stated" if spec.hardware.gpus is None else ", ".join(map(str, spec.hardware.gpus)) or "none"
    workload, load = spec.objective.workload, spec.objective.load
    rows = {
        "engine": spec.engine.kind.value,
        "GPUs": gpus,
        "workload": workload_text(workload),
        "input tokens": _length(workload.input_tokens),
        "output tokens": _length(workload.output_tokens),
        "load": load_text(load),
        "search space": f"{spec.search_space.name}, {len(spec.search_space.parameters)} parameters",
        **_versions(view),
    }
    cells = [[f"<strong>{_text(name)}</strong>", _text(value)] for name, value in rows.items()]
    return f'<section id="environment"><h2>What it ran on</h2>{_table([], cells)}</section>'


def reproduce(view: RunView) -> str:
    """Return the commands that repeat the study and serve its result."""
    commands = [f"autotune study {shlex.quote(str(view.path / 'study.yaml'))}    # seed {view.spec.seed}"]
    chosen = view.best or view.nearest
    if view.best is not None:
        commands.append(f"sh {shlex.quote(str(view.path / 'best' / 'serve.sh'))}")
    blocks = "".join(f"<pre>{escape(plain(command))}</pre>" for command in commands)
    if chosen is not None and chosen.argv:
        measured = escape(plain(shlex.join(chosen.argv)))
        blocks += f"<p>Trial {chosen.number} was started as</p><pre>{measured}</pre>"
    return f'<section id="reproduce"><h2>How to reproduce</h2>{blocks}</section>'


# --- helpers --------------------------------------------------------------------------------------------------------


def _text(text: str) -> str:
    return escape(plain(text))


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """`rows` hold HTML, `heads` plain text."""
    head = f"<thead><tr>{''.join(f'<th>{_text(name)}</th>' for name in heads)}</tr></thead>" if heads else ""
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f'<div class="wide"><table>{head}<tbody>{body}</tbody></table></div>'


def _chosen_word(view: RunView) -> str:
    return "best" if view.best is not None else "nearest"


def _metrics(view: RunView, trials: Sequence[TrialRecord]) -> list[str]:
    asked = [view.spec.objective.metric, *(slo.metric for slo in view.spec.objective.slos)]
    names = list(dict.fromkeys([*asked, *(name for name in _ALWAYS_SHOWN if name in known_names())]))
    return [name for name in names if name in asked or any(metric_of(trial, name) for trial in trials)]


def _metric_title(view: RunView, name: str) -> str:
    return f"{metric_label(name)} (objective)" if name == view.spec.objective.metric else metric_label(name)


def _figure_of(view: RunView, trial: TrialRecord, name: str) -> str:
    estimate: Estimate | None = trial.objective if name == view.spec.objective.metric else metric_of(trial, name)
    return with_interval(estimate)


def _limit(view: RunView, name: str) -> str:
    limits = [slo for slo in view.spec.objective.slos if slo.metric == name]
    return ", ".join(f"{'≤' if slo.bound is Bound.MAX else '≥'} {figure(slo.limit)}" for slo in limits)


def _arguments(columns: Sequence[tuple[str, TrialRecord]]) -> str:
    names = list(dict.fromkeys(name for _, trial in columns for name in flatten(trial.args)))
    rows = [[f"<code>{_text(name)}</code>", *(_argument(trial, name) for _, trial in columns)] for name in names]
    table = _table(["", *(word for word, _ in columns)], rows)
    return f"<h3>Arguments</h3>{table}<p class='note'>In brackets: not given; what the engine's default came to.</p>"


def _audit(columns: Sequence[tuple[str, TrialRecord]]) -> str:
    trials = [trial for _, trial in columns]
    rows = [[_text(label), *map(_text, figures)] for label, figures in counter_rows(trials)]
    if not rows:
        return ""
    remarks = "".join(f"<p class='note'>{_text(note)}</p>" for note in notes(trials))
    return f"<h3>Audit</h3>{_table(['', *(word for word, _ in columns)], rows)}{remarks}"


def _argument(trial: TrialRecord, name: str) -> str:
    given = flatten(trial.args)
    if name in given:
        return _text(value_text(given[name]))
    known = {**flatten(trial.defaults), **flatten(trial.resolved)}
    return _text(f"({value_text(known[name])})" if name in known else "(default)")


def _trial_row(view: RunView, trial: TrialRecord, side: str) -> str:
    beside = metric_of(trial, side)
    best = view.best is not None and trial.number == view.best.number
    reference = view.reference is not None and trial.number == view.reference.number
    marks = " ".join(word for word, is_so in (("★ best", best), ("reference", reference)) if is_so)
    pairs = "".join(f"<code>{escape(pair)}</code>" for pair in differing(trial, view.reference_for(trial)))
    cells = [
        _number(trial.number, str(trial.number)),
        f'<td class="mark">{marks}</td>',
        f'<td class="{_outcome_class(trial)}">{OUTCOME_WORDS[trial.outcome]}</td>',
        _number(trial.objective.value if trial.objective else None, with_interval(trial.objective)),
        _number(beside.value if beside else None, with_interval(beside)),
        _number(trial.startup_s, startup_text(trial.startup_s, trial.startup_kind)),
        f'<td class="pairs">{pairs}</td>',
    ]
    opening = '<tr class="best">' if best else "<tr>"
    return f"{opening}{''.join(cells)}</tr>"


def _number(value: float | None, text: str) -> str:
    return f'<td class="number" data-value="{"" if value is None else value}">{escape(text)}</td>'


def _number_class(column: int) -> str:
    return ' class="number"' if column in (0, 3, 4, 5) else ""


def _outcome_class(trial: TrialRecord) -> str:
    if trial.outcome.measured:
        return trial.outcome.value
    return "quiet" if trial.outcome in (Outcome.INTERRUPTED, Outcome.RULED_OUT) else "failed"


def _failure(group: FailureGroup, logs: Mapping[int, Sequence[str]]) -> str:
    which = "Trial" if len(group.trials) == 1 else "Trials"
    parts = [f"<h3>{which} {number_list(group.trials, shown=20)}: {escape(OUTCOME_MEANING[group.outcome])}</h3>"]
    if group.cause != OUTCOME_MEANING[group.outcome]:
        parts.append(f"<pre>{_lines(group.cause.splitlines())}</pre>")
    if group.remedy:
        parts.append(f"<p>Remedy: {_text(group.remedy)}</p>")
    if log := logs.get(group.trials[0], ()):
        parts.append(
            f"<details><summary>end of the log of trial {group.trials[0]}</summary><pre>{_lines(log)}</pre></details>"
        )
    return "".join(parts)


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(_text(line) for line in lines)


def _length(length: Length | None) -> str:
    if length is None:
        return "as the file has them"
    if isinstance(length, FixedLength):
        return str(length.tokens)
    if isinstance(length, LogNormalLength):
        return f"log-normal, median {length.median:g}, sigma {length.sigma:g}, {length.low} to {length.high}"
    return f"uniform, {length.low} to {length.high}"


def _versions(view: RunView) -> dict[str, str]:
    """Versions of all trials; where they differ, every one that was seen."""
    sources = [*(trial.versions for trial in view.trials), view.summary.versions if view.summary else {}]
    seen: dict[str, dict[str, None]] = {}
    for versions in sources:
        for name, version in versions.items():
            seen.setdefault(name, {})["absent" if version is None else str(version)] = None
    return {name: " / ".join(versions) for name, versions in seen.items()}
