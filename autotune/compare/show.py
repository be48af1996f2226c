"""A `Comparison` on a terminal: equal treatment first, then the figures side by side, then the verdict."""

from __future__ import annotations

from collections.abc import Iterator

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.compare.record import Comparison, Configuration
from autotune.report.words import ABSENT, duration, metric_label, plain, startup_text, with_interval


def render(comparison: Comparison) -> RenderableType:
    """Return all that the command prints."""
    parts: list[RenderableType] = [Text(plain(line), style="bold") for line in comparison.warnings]
    parts.append(_treatment(comparison))
    shapes = tuple(dict.fromkeys(c.shape for c in comparison.contenders))
    for shape in shapes:
        if len(shapes) > 1:
            parts += [Text(), Text(plain(shape), style="bold")]
        parts += [Text(), _figures(comparison, shape)]
    parts += [Text(), Text("Verdict", style="bold")]
    parts += [Padding(Text(plain(line)), (0, 0, 0, 2), expand=False) for line in comparison.verdict]
    return Group(*parts)


def _treatment(comparison: Comparison) -> Table:
    table = _table()
    for heading in (
        "run",
        "engine",
        "workload",
        "machine",
        "GPUs",
        "launched",
        "parallelism",
        "cold start",
        "prepared",
    ):
        table.add_column(heading, overflow="fold")
    for c in comparison.contenders:
        engine = f"{c.engine} {c.version or ''}".strip()
        spread = ", ".join(map(str, c.parallelism)) or ABSENT
        cold = ABSENT if c.cold_start_s is None else duration(c.cold_start_s)
        prepared = duration(c.prepare_s) if c.prepare_s else ABSENT
        cells = (c.run, engine, c.shape, c.machine, str(c.gpus), str(c.launched), spread, cold, prepared)
        table.add_row(*map(plain, cells))
    return table


def _figures(comparison: Comparison, shape: str) -> Table:
    columns = list(_columns(comparison, shape))
    table = _table()
    table.add_column("", no_wrap=True)
    for heading, _ in columns:
        table.add_column(heading, justify="right", overflow="fold")
    metrics = dict.fromkeys(metric for _, shown in columns for metric in shown.figures)
    for metric in metrics:
        style = "bold" if metric == comparison.objective else ""
        table.add_row(metric_label(metric), *(_cell(shown, metric) for _, shown in columns), style=style)
    return table


def _columns(comparison: Comparison, shape: str) -> Iterator[tuple[str, Configuration]]:
    for c in comparison.contenders:
        if c.shape != shape:
            continue
        if c.best is not None:
            yield f"{plain(c.run)}\nbest, trial {c.best.trial}", c.best
        if c.reference is not None and (c.best is None or c.reference.trial != c.best.trial):
            yield f"{plain(c.run)}\nreference, trial {c.reference.trial}", c.reference


def _cell(shown: Configuration, metric: str) -> str:
    found = shown.figures.get(metric)
    if metric == "startup_s" and found is not None:
        return startup_text(found.value, shown.startup_kind)
    return with_interval(found)


def _table() -> Table:
    return Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False)
