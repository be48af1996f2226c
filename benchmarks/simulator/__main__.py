"""The simulator against published measurements: `python -m benchmarks.simulator`. Exit 1 when a target is missed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from benchmarks.simulator.latency import Row, rows
from benchmarks.simulator.speed import search, speeds
from benchmarks.simulator.throughput import Figure, figures

TPOT_MAPE, TTFT_MEDIAN, THROUGHPUT_MAPE = 0.065, 0.10, 0.10
STEPS_PER_S, SEARCH_MS = 500e3, 30.0
WEAK = 0.20  # errors above this are listed one by one


def main() -> int:
    console = Console(width=110)
    points, published = list(rows()), list(figures())
    console.print(latency_table(points))
    console.print(throughput_table(published))
    console.print(weak_table(points))
    rates = list(speeds())
    search_ms, capacity_rps, simulations = search()
    speed = Table("offered req/s", "steps", "tokens a step", "steps/s", title="Speed on one core, compiled, best of 5")
    for rate in rates:
        speed.add_row(f"{rate.rps:g}", f"{rate.steps:,}", f"{rate.tokens_per_step:.0f}", f"{rate.steps_per_s:,.0f}")
    console.print(speed)
    console.print(
        f"capacity search: {search_ms:.0f} ms ({simulations} simulations of 600 requests; {capacity_rps:.1f} req/s)"
    )
    targets = [
        ("TPOT, mean absolute error", mape([r.tpot_error for r in points]), TPOT_MAPE, ".1%"),
        ("TTFT, median absolute error", median([r.ttft_error for r in points]), TTFT_MEDIAN, ".1%"),
        ("throughput, mean absolute error", mape([f.error for f in published]), THROUGHPUT_MAPE, ".1%"),
        ("capacity search, ms", search_ms, SEARCH_MS, ".0f"),
        ("microseconds a step, slowest load", 1e6 / min(r.steps_per_s for r in rates), 1e6 / STEPS_PER_S, ".2f"),
    ]
    verdict = Table("target", "reached", "limit", "", title="Targets")
    for name, value, limit, form in targets:
        verdict.add_row(name, format(value, form), format(limit, form), "ok" if value <= limit else "MISSED")
    console.print(verdict)
    return int(any(value > limit for _, value, limit, _ in targets))


def mape(errors: Sequence[float]) -> float:
    return float(np.mean(np.abs(errors)))


def median(errors: Sequence[float]) -> float:
    return float(np.median(np.abs(errors)))


def latency_table(points: Sequence[Row]) -> Table:
    table = Table("GPU", "TP", "points", "TPOT mean |e|", "TPOT bias", "TTFT median |e|", "TTFT median e",
                  title="Llama-3.1-70B fp8 under vLLM, 105 measured points; nothing fitted to them")  # fmt: skip
    groups: list[tuple[str, str, list[Row]]] = [
        (gpu, str(tp), [r for r in points if r.gpu == gpu and r.tp == tp])
        for gpu in ("h100", "h200")
        for tp in (1, 2, 4, 8)
    ]
    groups += [(gpu, "all", [r for r in points if r.gpu == gpu]) for gpu in ("h100", "h200")]
    for gpu, tp, some in [*groups, ("all", "all", list(points))]:
        if some:
            tpot, ttft = [r.tpot_error for r in some], [r.ttft_error for r in some]
            table.add_row(gpu, tp, str(len(some)), f"{mape(tpot):.1%}", f"{np.mean(tpot):+.1%}", f"{median(ttft):.1%}",
                          f"{np.median(ttft):+.1%}")  # fmt: skip
    return table


def throughput_table(published: Sequence[Figure]) -> Table:
    table = Table(
        "source", "model", "in", "out", "published tok/s", "simulated", "error", title="Offline throughput, one GPU"
    )
    for f in published:
        table.add_row(f.source, f.model, str(f.input_tokens), str(f.output_tokens), f"{f.published:,.0f}",
                      f"{f.simulated:,.0f}", f"{f.error:+.1%}")  # fmt: skip
    return table


def weak_table(points: Sequence[Row]) -> Table:
    columns = "GPU", "TP", "in", "out", "conc.", "TTFT ms", "simulated", "e", "TPOT ms", "simulated", "e", "preempted"
    table = Table(*columns, title=f"Weak spots: every point off by more than {WEAK:.0%}")
    weak = [r for r in points if max(abs(r.ttft_error), abs(r.tpot_error)) > WEAK]
    for r in sorted(weak, key=lambda r: -max(abs(r.ttft_error), abs(r.tpot_error))):
        ttft = f"{r.ttft_ms:,.0f}", f"{r.simulated_ttft_ms:,.0f}", f"{r.ttft_error:+.0%}"
        tpot = f"{r.tpot_ms:.1f}", f"{r.simulated_tpot_ms:.1f}", f"{r.tpot_error:+.0%}"
        size = str(r.tp), str(r.input_tokens), str(r.output_tokens), str(r.concurrency)
        table.add_row(r.gpu, *size, *ttft, *tpot, str(r.preemptions))
    return table


if __name__ == "__main__":
    sys.exit(main())
