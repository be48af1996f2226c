"""The plots of the page, as plotly figures: records in, figures out."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from autotune.records.spec import Direction, StudySpec
from autotune.records.trial import Estimate, Outcome, TrialRecord
from autotune.report.drawing import (
    BEST,
    FAILED,
    HEIGHT_PX,
    INK,
    LIMIT,
    MEETS,
    Chart,
    Style,
    blank,
    by_style,
    label,
    safe,
)
from autotune.report.importance import importances
from autotune.report.parallel import parallel
from autotune.report.view import RunView, is_latency, metric_of, side_metric
from autotune.report.words import better, differing, figure, metric_label, with_interval
from autotune.search.sensitivity import with_intervals


def charts(view: RunView) -> list[Chart]:
    """Return every plot of the page in order."""
    return [history(view), pareto(view), importance(view), parallel(view)]


def history(view: RunView) -> Chart:
    """Return the objective by trial, the best so far, the reference, and where trials gave nothing."""
    title = "History"
    if not view.trials:
        return Chart(name="history", title=title, note="No trial has finished yet.")
    if all(trial.objective is None for trial in view.trials):
        return Chart(name="history", title=title, note="No trial was measured.")
    measure = metric_label(view.spec.objective.metric)
    drawing = blank("trial", measure)
    for style, trials in by_style(view):
        if measured := [trial for trial in trials if trial.objective is not None]:
            drawing.add_trace(_points(view, measured, style, [trial.number for trial in measured]))
    numbers, values = _best_so_far(view)
    if numbers:
        line = {"shape": "hv", "color": BEST.colour, "width": 2}
        drawing.add_trace(
            go.Scatter(x=numbers, y=values, mode="lines", line=line, name="best so far", hoverinfo="skip")
        )
    _mark_failed(drawing, view)
    if view.reference is not None and view.reference.objective is not None:
        drawing.add_hline(view.reference.objective.value, line={"dash": "dash", "color": INK, "width": 1})
        label(
            drawing, "reference", x=1, y=view.reference.objective.value, xref="paper", xanchor="right", yanchor="bottom"
        )
    drawing.update_xaxes(tickformat="d", dtick=1 if len(view.trials) <= 12 else None)
    note = f"{measure} of each trial, with its interval; higher is better."
    if view.spec.objective.direction is Direction.MINIMIZE:
        note = note.replace("higher", "lower")
    return Chart(name="history", title=title, note=note, figure=drawing)


def pareto(view: RunView) -> Chart:
    """Return the objective against the latency that limits it, with the SLO and the front."""
    objective, side = view.spec.objective.metric, side_metric(view.spec)
    title = f"{metric_label(objective)} against {metric_label(side)}"
    points = {
        trial.number: (x.value, trial.objective.value)
        for trial in view.trials
        if trial.objective is not None and (x := metric_of(trial, side)) is not None
    }
    if not points:
        return Chart(name="pareto", title=title, note="No trial was measured, so there is nothing to trade off.")
    drawing = blank(metric_label(side), metric_label(objective))
    for style, trials in by_style(view):
        if chosen := [trial for trial in trials if trial.number in points]:
            drawing.add_trace(_points(view, chosen, style, [points[trial.number][0] for trial in chosen]))
    front = _front(view.spec, list(points.values()))
    line = {"color": INK, "width": 1, "dash": "dot"}
    drawing.add_trace(
        go.Scatter(
            x=[x for x, _ in front], y=[y for _, y in front], mode="lines", line=line, name="front", hoverinfo="skip"
        )
    )
    for slo in view.spec.objective.slos:
        if slo.metric == side:
            drawing.add_vline(slo.limit, line={"color": LIMIT, "width": 2})
            label(
                drawing,
                f"SLO {figure(slo.limit)}",
                x=slo.limit,
                y=1,
                yref="paper",
                xanchor="left",
                yanchor="top",
                color=LIMIT,
            )
    return Chart(
        name="pareto", title=title, note="Along the dotted front, more of one costs some of the other.", figure=drawing
    )


def _error_bars(view: RunView, names: Sequence[str]) -> dict[str, object]:
    """The middle 90 % of each share over resampled trials, as plotly takes it."""
    measured = [trial for trial in view.trials if trial.objective is not None and trial.params and trial.final is None]
    found = with_intervals(measured, lambda some: importances(view.spec, some))
    above = [max(0.0, found[name][2] - found[name][0]) if name in found else 0.0 for name in names]
    below = [max(0.0, found[name][0] - found[name][1]) if name in found else 0.0 for name in names]
    return {"type": "data", "symmetric": False, "array": above, "arrayminus": below, "color": INK}


def importance(view: RunView) -> Chart:
    """Return how much each parameter mattered, or why that can't be told."""
    found = importances(view.spec, view.trials)
    if isinstance(found, str):
        return Chart(name="importance", title="Importance", note=f"{found[0].upper()}{found[1:]}.")
    shares = sorted(found.items(), key=lambda item: item[1])
    drawing = blank("share of importance", "")
    drawing.add_trace(
        go.Bar(
            x=[share for _, share in shares],
            y=[safe(name) for name, _ in shares],
            orientation="h",
            error_x=_error_bars(view, [name for name, _ in shares]),
            marker={"color": MEETS.colour},
            hovertemplate="%{y}: %{x:.2f}<extra></extra>",
        )
    )
    drawing.update_layout(showlegend=False, height=max(HEIGHT_PX // 2, 90 + 26 * len(shares)))
    drawing.update_yaxes(automargin=True)
    note = (
        "Share of each parameter in reaching the best quarter of the measured values (PED-ANOVA). It says nothing of "
        "parameters that decide whether the engine runs at all, and less the fewer the trials."
    )
    return Chart(name="importance", title="Importance", note=note, figure=drawing)


def _points(view: RunView, trials: Sequence[TrialRecord], style: Style, xs: Sequence[float]) -> go.Scatter:
    estimates = [trial.objective for trial in trials if trial.objective is not None]
    return go.Scatter(
        x=list(xs),
        y=[estimate.value for estimate in estimates],
        mode="markers",
        name=style.name,
        marker={
            "color": style.colour,
            "symbol": style.symbol,
            "size": style.size,
            "opacity": 0.9,
            "line": {"width": 2 if style.symbol.endswith("open") else 0},
        },
        error_y={
            "type": "data",
            "symmetric": False,
            "array": [_reach(estimate.high, estimate.value) for estimate in estimates],
            "arrayminus": [_reach(estimate.value, estimate.low) for estimate in estimates],
            "thickness": 1,
            "width": 2,
            "color": style.colour,
        },
        text=[_hover(view, trial) for trial in trials],
        hoverinfo="text",
    )


def _reach(high: float | None, low: float | None) -> float:
    return 0.0 if high is None or low is None else max(0.0, high - low)


def _hover(view: RunView, trial: TrialRecord) -> str:
    pairs = differing(trial, view.reference_for(trial))
    figures: Sequence[tuple[str, Estimate | None]] = [
        (view.spec.objective.metric, trial.objective),
        (side_metric(view.spec), metric_of(trial, side_metric(view.spec))),
    ]
    lines = [f"trial {trial.number}", *(f"{metric_label(n)} {with_interval(v)}" for n, v in figures), *pairs]
    return "<br>".join(safe(line[:120]) for line in lines)


def _mark_failed(drawing: go.Figure, view: RunView) -> None:
    """Trials without a value stand along the foot of the plot, on an axis of their own."""
    trials = [trial for trial in view.trials if trial.objective is None]
    if not trials:
        return
    drawing.add_trace(
        go.Scatter(
            x=[trial.number for trial in trials],
            y=[0.03] * len(trials),
            yaxis="y2",
            mode="markers",
            name=FAILED.name,
            marker={"color": FAILED.colour, "symbol": FAILED.symbol, "size": 9},
            text=[safe(f"trial {t.number}: {t.outcome.value.replace('_', ' ')}") for t in trials],
            hoverinfo="text",
        )
    )
    drawing.update_layout(yaxis2={"overlaying": "y", "range": [0, 1], "visible": False, "fixedrange": True})


def _best_so_far(view: RunView) -> tuple[list[int], list[float]]:
    numbers: list[int] = []
    values: list[float] = []
    for trial in view.trials:
        if trial.outcome is Outcome.OK and trial.objective is not None:
            value = trial.objective.value
            if values and not better(value, values[-1], view.spec.objective.direction):
                value = values[-1]
            numbers.append(trial.number)
            values.append(value)
    if numbers and numbers[-1] != view.trials[-1].number:
        numbers.append(view.trials[-1].number)
        values.append(values[-1])
    return numbers, values


def _front(spec: StudySpec, points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points that no other beats in both, in order of x."""
    side = Direction.MINIMIZE if is_latency(side_metric(spec)) else Direction.MAXIMIZE
    front: list[tuple[float, float]] = []
    ordered = sorted(set(points), key=lambda point: point[0], reverse=side is Direction.MAXIMIZE)
    for point in ordered:
        if not front or better(point[1], front[-1][1], spec.objective.direction):
            front.append(point)
    return front
