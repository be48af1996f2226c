"""Parallel coordinates: every trial a line through the values of the parameters that vary, ending at its objective.

Drawn as plain lines: plotly's own kind needs WebGL, which browsers without a GPU and strict pages lack.
"""

from __future__ import annotations

import html
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from autotune.records.spec import FloatRange, IntRange, StudySpec
from autotune.records.trial import Outcome, TrialRecord
from autotune.report.drawing import HEIGHT_PX, Chart, blank, by_style, safe
from autotune.report.view import RunView
from autotune.report.words import figure, metric_label, plain, value_text
from autotune.trial.differences import flatten


def parallel(view: RunView) -> Chart:
    """Return every trial as a line through the values of the parameters that vary, ending at its objective."""
    axes = _axes(view)
    if not axes:
        return Chart(
            name="parallel", title="Parallel coordinates", note="Fewer than two configurations: nothing varies."
        )
    drawing = blank("", "")
    for style, trials in by_style(view):
        drawing.add_trace(_lines(axes, trials, style.name, {"color": style.colour, "width": style.width}))
    marks = [(position, place, text) for position, axis in enumerate(axes) for place, text in axis.ticks]
    for position, place, text in marks:
        drawing.add_annotation(
            text=safe(text), x=position, y=place, xanchor="left", showarrow=False, bgcolor="white", opacity=0.85
        )
    names = [html.escape(plain(axis.name)).replace("_", "_<br>").replace(" ", "<br>") for axis in axes]
    drawing.update_xaxes(tickvals=list(range(len(axes))), ticktext=names, range=[-0.2, len(axes) - 0.4], tickangle=0)
    drawing.update_xaxes(showgrid=True, gridcolor="#888888", showline=False)
    drawing.update_yaxes(visible=False, range=[-0.18, 1.08])
    drawing.update_layout(hovermode="closest", height=HEIGHT_PX + 60, margin={"b": 80})
    note = "A line is a trial; it ends before the last axis where nothing was measured."
    return Chart(
        name="parallel", title="Parallel coordinates", note=note, figure=drawing, min_width_px=84 * len(axes) + 40
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of the parallel coordinates: where each trial stands (0 to 1) and what it shows there."""

    name: str
    place: Mapping[int, float]
    shown: Mapping[int, str]
    ticks: tuple[tuple[float, str], ...]


_DEFAULT_PLACE = -0.1
"""Below the axis: the engine's default holds, its value is not ours to know."""


def _axes(view: RunView) -> list[Axis]:
    flat = {trial.number: flatten(trial.args) for trial in view.trials}
    launched = [trial.number for trial in view.trials if trial.outcome is not Outcome.RULED_OUT]  # others: params alone
    names = list(dict.fromkeys(name for args in flat.values() for name in args))
    axes = []
    for name in names:
        values = {number: args[name] for number, args in flat.items() if name in args}
        missing = any(number not in values for number in launched)
        if len({value_text(value) for value in values.values()}) + missing >= 2:
            axes.append(_axis(name, values, launched, log=_is_log(view.spec, name)))
    objective = {trial.number: trial.objective.value for trial in view.trials if trial.objective is not None}
    if axes and objective:
        axes.append(_axis(metric_label(view.spec.objective.metric), objective, list(objective), log=False, digits=3))
    return axes


def _axis(name: str, values: Mapping[int, Any], numbers: Sequence[int], *, log: bool, digits: int = 6) -> Axis:
    numeric = all(isinstance(value, int | float) and not isinstance(value, bool) for value in values.values())
    shown = {number: (figure(values[number], digits) if numeric else value_text(values[number])) for number in values}
    if numeric:
        scale = {number: math.log(value) if log and value > 0 else float(value) for number, value in values.items()}
        low, high = min(scale.values()), max(scale.values())
        place = {number: (value - low) / (high - low) if high > low else 0.5 for number, value in scale.items()}
        extremes = {min(scale, key=scale.__getitem__), max(scale, key=scale.__getitem__)}
        ticks = {shown[number]: place[number] for number in extremes}
    else:
        texts = sorted(set(shown.values()))
        spots = {text: index / (len(texts) - 1) if len(texts) > 1 else 0.5 for index, text in enumerate(texts)}
        place = {number: spots[text] for number, text in shown.items()}
        ticks = spots
    missing = [number for number in numbers if number not in values]
    if missing:
        ticks = {**ticks, "default": _DEFAULT_PLACE}
    return Axis(
        name=name,
        place={**place, **dict.fromkeys(missing, _DEFAULT_PLACE)},
        shown={**shown, **dict.fromkeys(missing, "default")},
        ticks=tuple((where, text if len(text) <= 12 else text[:11] + "…") for text, where in ticks.items()),
    )


def _is_log(spec: StudySpec, name: str) -> bool:
    domains = {parameter.name: parameter.domain for parameter in spec.search_space.parameters}
    domain = domains.get(name)
    return isinstance(domain, IntRange | FloatRange) and domain.log


def _lines(axes: Sequence[Axis], trials: Sequence[TrialRecord], name: str, line: Mapping[str, Any]) -> go.Scatter:
    """One trace for all lines of a kind, parted by gaps: a trace a trial would make long studies slow."""
    xs: list[int | None] = []
    ys: list[float | None] = []
    texts: list[str] = []
    for trial in trials:
        for position, axis in enumerate(axes):
            if trial.number in axis.place:
                xs.append(position)
                ys.append(axis.place[trial.number])
                texts.append(safe(f"trial {trial.number}: {axis.name} {axis.shown[trial.number]}"))
        xs.append(None)
        ys.append(None)
        texts.append("")
    opacity = 1.0 if len(trials) == 1 else 0.7
    return go.Scatter(x=xs, y=ys, text=texts, mode="lines", line=line, name=name, opacity=opacity, hoverinfo="text")
