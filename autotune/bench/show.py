"""A `BenchRecord` as text for people: the table of figures, the verdict, and what to make of them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from rich import box
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.bench.record import BenchRecord, Compared, CrossCheck, Noise
from autotune.bench.words import opening
from autotune.records.trial import Estimate, Measurement, Outcome, Ruling, SloRuling
from autotune.report.words import (
    ABSENT,
    OUTCOME_MEANING,
    SIMULATED,
    diagnosis_text,
    duration,
    figure,
    interval,
    metric_label,
    one_line,
    plain,
    slo_text,
    with_interval,
)
from autotune.trial.judging import pooled

RATES = ("output_tok_per_s", "total_tok_per_s", "request_rps", "goodput_rps")
LATENCIES = tuple(
    f"{base}.{stat}" for base in ("ttft_ms", "tpot_ms", "itl_ms", "e2e_ms") for stat in ("mean", "p50", "p95", "p99")
)
ONE_LAUNCH = "One running server is one launch: what launches differ by comes on top of this."
_VERDICTS = {Ruling.PASS: "holds", Ruling.FAIL: "missed", Ruling.UNSURE: "unsure"}
_COLOURS = {Ruling.PASS: "green", Ruling.FAIL: "yellow", Ruling.UNSURE: "cyan"}


def render(record: BenchRecord) -> RenderableType:
    """Return all that the command prints on stdout."""
    parts: list[RenderableType] = [Text(SIMULATED, style="bold black on yellow")] if record.simulated else []
    parts.append(Text(opening(record.url, record.model, record.versions.get("server"), record.objective, record.seed)))
    if record.interrupted:
        parts.append(Text("Interrupted: figures of what came until then", style="bold"))
    if record.measurements:
        parts += [Text(), figures(record) if record.objective.load.capacity is None else curve(record)]
    parts += _section("SLOs", [_slo(slo) for slo in record.verdict.slos] if record.verdict else [])
    parts += _section("Capacity", [Text(line) for line in _capacity(record)])
    untrusted = _grouped(record.verdict.untrusted) if record.verdict else []
    parts += _section("Not to be trusted", [Text(plain(why)) for why in untrusted])
    parts += _section("Worth knowing", [Text(plain(note)) for note in _notes(record)])
    parts += _section("Why", [Text(diagnosis_text(record.diagnosis))] if record.diagnosis else [])
    if record.noise:
        parts += [Text(), noise_table(record.noise), Text(ONE_LAUNCH)]
    if record.cross_check is not None:
        parts += [Text(), *_cross_check(record.cross_check)]
    return Group(*parts, Text(), Text(headline(record), style="bold"))


def headline(record: BenchRecord) -> str:
    """Return the outcome in one line."""
    if record.failure is not None:
        text = f"Failed: {one_line(record.failure.cause)}"
        return f"{text}; {plain(record.failure.remedy)}" if record.failure.remedy else text
    value = with_interval(record.value, " " + metric_label(record.objective.metric))
    if record.verdict is None or not record.verdict.slos:
        return f"Measured: {value}" if record.value else f"Measured nothing: {OUTCOME_MEANING[record.outcome]}"
    words = {Outcome.OK: "Meets", Outcome.SLO_MISS: "Misses", Outcome.UNSURE: "Unsure whether it meets"}
    return f"{words[record.outcome]} the objective {plain(record.objective.name)}: {value}"


# --- figures ----------------------------------------------------------------------------------------------------------


def figures(record: BenchRecord) -> Table:
    """Return the table of figures, over all levels: value, interval at the objective's confidence, samples."""
    objective = record.objective
    table = _table()
    table.add_column("", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column(f"{objective.confidence * 100:g} % interval", justify="right", no_wrap=True)
    table.add_column("samples", justify="right", no_wrap=True)
    wanted = dict.fromkeys(
        (objective.metric, *(slo.metric for slo in objective.slos), *RATES, *LATENCIES, "error_ratio")
    )
    for metric in sorted(wanted, key=_order):
        estimate = pooled(metric, record.measurements)
        if estimate is not None:
            bold = "bold" if metric == objective.metric else ""
            table.add_row(
                metric_label(metric), figure(estimate.value), _interval(estimate), f"{estimate.n}", style=bold
            )
    return table


def curve(record: BenchRecord) -> Table:
    """Return the table of a search for capacity, a row a level by load: figures of several loads don't pool."""
    rates = record.objective.load.open_loop
    metrics = dict.fromkeys(("output_tok_per_s", *(slo.metric for slo in record.objective.slos)))
    table = _table("Levels, by load")
    for heading in ("requests/s" if rates else "clients", "seconds", *map(metric_label, metrics)):
        table.add_column(heading.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for level in sorted(record.measurements, key=_load):
        values = [level.values[metric].value if metric in level.values else None for metric in metrics]
        table.add_row(figure(_load(level)), f"{level.duration_s:.0f}", *map(figure, values))
    return table


def _load(level: Measurement) -> float:
    return level.offered_rps or level.concurrency or 0.0


def _order(metric: str) -> tuple[int, str, float]:
    """Rates first, then latencies by kind, mean before quantiles; all else last."""
    base, _, stat = metric.partition(".")
    kinds = ["ttft_ms", "tpot_ms", "itl_ms", "e2e_ms"]
    if base in kinds:
        return 1 + kinds.index(base), "", 0.0 if stat == "mean" else float(stat[1:])
    return (0, metric, 0.0) if metric != "error_ratio" else (9, "", 0.0)


def _interval(estimate: Estimate) -> str:
    return interval(estimate.low, estimate.high) or ABSENT


def _slo(slo: SloRuling) -> Text:
    text = Text(f"{_VERDICTS[slo.ruling]}: ", style=_COLOURS[slo.ruling])
    return text.append(slo_text(slo) + (f"; {plain(slo.why)}" if slo.why else ""), style="default")


def _capacity(record: BenchRecord) -> Iterator[str]:
    found = record.capacity
    if found is None:
        return
    unit = " requests/s" if found.of == "rps" else " clients"
    how = f"by {plain(found.method)}, {found.levels} levels in {duration(found.load_s)}"
    yield f"{with_interval(found.value, unit)}, {how}"
    yield from (plain(doubt) for doubt in found.doubts)


def _notes(record: BenchRecord) -> list[str]:
    levels = record.measurements
    notes = [note for level in levels for note in level.notes]
    notes += [f"a level ended early: {level.stopped}" for level in levels if level.stopped and not record.interrupted]
    if record.objective.metric.endswith("_per_gpu") and record.gpus == 1:
        notes.append("per-GPU figures take the server to have one GPU: --gpus says otherwise")
    return _grouped(notes)


def _grouped(notes: Sequence[str]) -> list[str]:
    """Notes that differ in nothing but their numbers, as the first of them and how many more there are."""
    kinds: dict[str, list[str]] = {}
    for note in notes:
        kinds.setdefault(re.sub(r"\d+", "0", note), []).append(note)
    return [found[0] + (f" (and {len(found) - 1} more like it)" if len(found) > 1 else "") for found in kinds.values()]


# --- A/A --------------------------------------------------------------------------------------------------------------


def noise_table(found: Sequence[Noise]) -> Table:
    """Return the A/A differences, a row a metric."""
    table = _table("Equal levels against one another")
    table.add_column("", no_wrap=True)
    for heading in ("pairs", "mean\ndifference", "largest", "noise\n(1 sd)", "a tie\nwithin"):
        table.add_column(heading, justify="right", no_wrap=True)
    for each in found:
        differences = [abs(pair.ratio - 1) for pair in each.pairs]
        shares = sum(differences) / len(differences), max(differences), each.within, each.tie_ratio - 1
        table.add_row(metric_label(each.metric), f"{len(differences)}", *(f"{share:.1%}" for share in shares))
    return table


# --- cross-check ------------------------------------------------------------------------------------------------------


def _cross_check(check: CrossCheck) -> Iterator[RenderableType]:
    version = f" {plain(check.version)}" if check.version else ""
    failed = f", {check.failed} of them failed" if check.failed else ""
    yield cross_table(check)
    yield Text(f"{check.tool}{version}: {check.requests} requests{failed}, {duration(check.wall_s)} in all")
    yield from (_indented(Text(f"- {line}")) for line in check.differences)


def cross_table(check: CrossCheck) -> Table:
    """Return both tools side by side: theirs as it says, and by our definitions from its own requests."""
    table = _table(f"The same level by {check.tool}; ratios are theirs / ours")
    table.add_column("", no_wrap=True)
    for heading in ("ours", "theirs,\nas it says", "ratio", "theirs, by\nour definition", "ratio"):
        table.add_column(heading, justify="right", no_wrap=True)
    for row in sorted(check.compared, key=lambda row: _order(row.metric)):
        cells = figure(row.said, 4), _ratio(row, row.said), figure(row.measured, 4), _ratio(row, row.measured)
        table.add_row(metric_label(row.metric), figure(row.ours, 4), *cells)
    return table


def _ratio(row: Compared, theirs: float | None) -> str:
    return ABSENT if theirs is None or not row.ours else f"{theirs / row.ours:.3f}"


def _table(title: str | None = None) -> Table:
    return Table(
        title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), pad_edge=False, show_edge=False
    )


def _section(title: str, lines: Sequence[Text]) -> list[RenderableType]:
    return [Text(), Text(title, style="bold"), *map(_indented, lines)] if lines else []


def _indented(line: Text) -> RenderableType:
    return Padding(line, (0, 0, 0, 2), expand=False)
