"""Regret after each launch, a panel a landscape: the median over seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from benchmarks.search.figures import regret
from benchmarks.search.protocol import Run
from benchmarks.search.strategies import OURS
from benchmarks.search.table import by_landscape

COLUMNS, HEIGHT_PX = 2, 380
COLOURS = ("#4c78a8", "#f58518", "#54a24b", "#b279a2", "#9d755d", "#72b7b2", "#eeca3b", "#bab0ac", "#ff9da6", "#79706e")
OWN = "#d62728"


def write_plot(runs: Sequence[Run], path: Path) -> None:
    """Write the page."""
    found = by_landscape(runs)
    names = sorted(found)
    strategies = sorted({run.strategy for run in runs})
    colours = {name: OWN if name == OURS else COLOURS[i % len(COLOURS)] for i, name in enumerate(strategies)}
    rows = -(-len(names) // COLUMNS)
    page = make_subplots(rows=rows, cols=COLUMNS, subplot_titles=names)
    for i, name in enumerate(names):
        for trace in _panel(found[name], colours, legend=i == 0):
            page.add_trace(trace, row=i // COLUMNS + 1, col=i % COLUMNS + 1)
    page.update_xaxes(title="launches")
    page.update_yaxes(title="regret", tickformat=".0%", rangemode="tozero")
    page.update_layout(
        title="What is handed over, short of the optimum", height=HEIGHT_PX * rows, template="plotly_white"
    )
    page.write_html(path, include_plotlyjs=True)


def _panel(runs: Mapping[str, Sequence[Run]], colours: Mapping[str, str], *, legend: bool) -> list[go.Scatter]:
    traces = []
    for strategy, own in sorted(runs.items()):
        curve = _curve(own)
        width = 3.5 if strategy == OURS else 1.3
        line = {"color": colours[strategy], "width": width, "shape": "hv"}
        launches = list(range(1, len(curve) + 1))
        traces.append(
            go.Scatter(x=launches, y=curve, name=strategy, line=line, legendgroup=strategy, showlegend=legend)
        )
    return traces


def _curve(runs: Sequence[Run]) -> list[float]:
    """The median over seeds; a run that ended keeps what it had."""
    longest = max(len(run.steps) for run in runs)
    curves = [regret(run) for run in runs]
    filled = [curve + [curve[-1]] * (longest - len(curve)) for curve in curves if curve]
    return [float(x) for x in np.median(np.array(filled), axis=0)]
