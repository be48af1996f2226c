"""What the plots share: how a kind of trial looks, an empty figure in the page's style, and safe text."""

from __future__ import annotations

import html
from dataclasses import dataclass

import plotly.graph_objects as go

from autotune.records.trial import Outcome, TrialRecord
from autotune.report.view import RunView
from autotune.report.words import plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A plot with its words; without a figure, `note` says why there is none."""

    name: str
    title: str
    note: str
    figure: go.Figure | None = None
    min_width_px: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the trials of one kind look. Colours: Okabe and Ito, 2008."""

    name: str
    colour: str
    symbol: str
    width: float
    size: int = 9


MEETS = Style(name="meets every SLO", colour="#0072B2", symbol="circle", width=1.4)
MISSES = Style(name="misses an SLO", colour="#E69F00", symbol="x", width=1.2)
UNSURE = Style(name="unsure", colour="#CC79A7", symbol="diamond-open", width=1.2)
FAILED = Style(name="not measured", colour="#777777", symbol="triangle-down", width=0.8)
BEST = Style(name="best", colour="#009E73", symbol="star", width=4.0, size=16)
LIMIT = "#D55E00"
INK = "#222222"

_STYLES = {Outcome.OK: MEETS, Outcome.SLO_MISS: MISSES, Outcome.UNSURE: UNSURE}
HEIGHT_PX = 380


def by_style(view: RunView) -> list[tuple[Style, list[TrialRecord]]]:
    """Return the trials by how they are drawn, the best last so that it lies on top; kinds without a trial are left
    out."""
    best = view.best.number if view.best else None
    groups: dict[Style, list[TrialRecord]] = {style: [] for style in (FAILED, UNSURE, MISSES, MEETS, BEST)}
    for trial in view.trials:
        groups[BEST if trial.number == best else _STYLES.get(trial.outcome, FAILED)].append(trial)
    return [(style, trials) for style, trials in groups.items() if trials]


def blank(x_title: str, y_title: str) -> go.Figure:
    """Return an empty figure in the style of the page."""
    drawing = go.Figure()
    drawing.update_layout(
        template="plotly_white",
        height=HEIGHT_PX,
        margin={"l": 56, "r": 20, "t": 36, "b": 48},
        font={"family": "system-ui, sans-serif", "size": 13, "color": INK},
        legend={"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0},
        hoverlabel={"align": "left"},
    )
    drawing.update_xaxes(title=html.escape(x_title), zeroline=False)
    drawing.update_yaxes(title=html.escape(y_title), zeroline=False)
    return drawing


def label(drawing: go.Figure, text: str, *, color: str = INK, **where: float | str) -> None:
    """Write `text` at a place of the figure; `where` as plotly's annotations take it."""
    drawing.add_annotation(
        text=safe(text), showarrow=False, font={"size": 12, "color": color}, bgcolor="rgba(255,255,255,0.8)", **where
    )


def safe(text: str) -> str:
    """Return text for a figure: plotly reads a subset of HTML in its texts."""
    return html.escape(plain(text), quote=False)
