"""How far the load client's clock can be trusted: `python -m benchmarks.load [--quick]`. Exit 1 when a goal is missed.

A server that logs when it sent each token runs on one core, the client on another; what the client measured is compared
with the log, request by request. Other load generators run the same cells where they are installed.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.load import rivals
from benchmarks.load.cells import SATURATED_ITL_MS, SATURATED_STREAMS, Cell, Errors, ours
from benchmarks.load.truth import build

CELLS = (*(Cell(streams=n) for n in (16, 64, 256, 512)), *(Cell(rps=rate) for rate in (20.0, 100.0, 400.0)))
RIVAL_CELLS = (Cell(streams=64), Cell(streams=256), Cell(rps=100.0))
SATURATION = Cell(streams=SATURATED_STREAMS, itl_ms=SATURATED_ITL_MS)
TTFT_MEAN_MS, TTFT_P99_MS, ITL_P99_MS, EVENTS_PER_S_A_CORE = 0.5, 1.5, 1.0, 40_000
TINY_MODEL = Path(".venv-vllm/tiny-model")  # scripts/vllm_env.sh


def main() -> int:
    options = arguments()
    server_core, client_core = cores()
    repeats, duration_s = (1, 5.0) if options.quick else (options.repeats, 8.0)
    console = Console(width=130)
    with tempfile.TemporaryDirectory() as folder:
        program = build(Path(folder))

        def run(cell: Cell) -> list[Errors]:
            return [ours(cell, program, server_core, duration_s, seed) for seed in range(1, repeats + 1)]

        console.print(
            f"server on core {server_core}, client on core {client_core}; {repeats} x {duration_s:g} s a cell"
        )
        results = {cell: run(cell) for cell in CELLS}
        console.print(own_table(results))
        saturated = run(SATURATION)
        console.print(saturation_line(saturated))
        others = [] if options.quick else list(installed(options))
        if not options.quick:
            console.print(rivals_table(others, results, program, server_core, duration_s))
    verdict, missed = goals(results, saturated)
    console.print(verdict)
    return int(missed)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short run a cell, no rivals: under two minutes")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each cell, of which the spread is shown")
    parser.add_argument("--vllm-bench", metavar="PATH", default=None, help="the program vllm (default: on PATH)")
    parser.add_argument("--aiperf", metavar="PATH", default=None, help="the program aiperf (default: on PATH)")
    parser.add_argument("--tokenizer", default=None, help="for the rivals, which need one (default: the tiny model's)")
    return parser.parse_args()


def cores() -> tuple[int, int]:
    """Take one core for the server and one for the client; this program itself gets what the client leaves."""
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        raise SystemExit("benchmarks/load needs two cores: one for the server, one for the client")
    # What reads the records shares the client's core here, at a priority that yields to it and isn't inherited.
    os.sched_setscheduler(0, os.SCHED_IDLE | os.SCHED_RESET_ON_FORK, os.sched_param(0))
    os.sched_setaffinity(0, {allowed[1]})
    return allowed[0], allowed[1]


def installed(options: argparse.Namespace) -> Sequence[rivals.Rival]:
    tokenizer = options.tokenizer or (str(TINY_MODEL) if TINY_MODEL.exists() else None)
    found: list[rivals.Rival] = []
    for name, asked, kind in (
        ("vllm", options.vllm_bench, rivals.VllmBench),
        ("aiperf", options.aiperf, rivals.Aiperf),
    ):
        program = shutil.which(asked or name)
        if program is None or tokenizer is None:
            print(f"{kind.name}: skipped, {'no tokenizer (--tokenizer)' if program else 'not installed'}")
        else:
            found.append(kind(program, tokenizer))
    return found


def spread(runs: Sequence[Errors], figure: Callable[[Errors], float | None], form: str = ".3f") -> str:
    """The median of the runs, with the least and the most where there are several."""
    values = sorted(value for run in runs if (value := figure(run)) is not None)
    if not values:
        return "-"
    middle = format(values[len(values) // 2], form)
    return middle if len(values) == 1 else f"{middle} ({values[0]:{form}}-{values[-1]:{form}})"


def own_table(results: dict[Cell, list[Errors]]) -> Table:
    title = "autotune against the truth: the median of the runs (least-most)"
    table = Table("load", "requests", "failed", "TTFT error mean ms", "p99 ms", "|ITL error| p99 ms", "tokens/s",
                  "CPU ms / 1k tokens", "send lag p99 ms", title=title)  # fmt: skip
    for cell, runs in results.items():
        table.add_row(
            cell.name, spread(runs, lambda r: r.requests, ".0f"), str(sum(run.failed for run in runs)),
            spread(runs, lambda r: r.ttft_mean_ms), spread(runs, lambda r: r.ttft_p99_ms),
            spread(runs, lambda r: r.itl_p99_ms), spread(runs, lambda r: r.events_per_s, ".0f"),
            spread(runs, lambda r: r.cpu_us, ".1f"), spread(runs, lambda r: r.send_lag_p99_ms, ".2f"),
        )  # fmt: skip
    return table


def saturation_line(runs: Sequence[Errors]) -> str:
    return (
        f"saturated ({SATURATED_STREAMS} streams, a token every {SATURATED_ITL_MS:g} ms):"
        f" {spread(runs, lambda r: r.events_per_s, '.0f')} token events/s,"
        f" {spread(runs, lambda r: 1e6 / r.cpu_us, '.0f')} a second of the client's CPU"
    )


def rivals_table(
    others: Sequence[rivals.Rival], results: dict[Cell, list[Errors]], program: Path, core: int, duration_s: float
) -> Table:
    table = Table("load", "client", "requests", "TTFT error mean ms", "p99 ms", "|ITL error| p99 ms",
                  "wall time beyond the load, s", title="Side by side, one run each")  # fmt: skip
    for cell in RIVAL_CELLS if others else ():
        rows = [("autotune", rivals.Ran(errors=results[cell][0]))]
        rows += [(other.name, rivals.run(other, cell, program, core, duration_s)) for other in others]
        for name, ran in rows:
            if ran.errors is None:
                table.add_row(cell.name, name, "-", ran.why)
                continue
            one, beyond = [ran.errors], f"{ran.overhead_s:.1f}" if ran.overhead_s else ""
            table.add_row(
                cell.name, name, str(ran.errors.requests), spread(one, lambda r: r.ttft_mean_ms),
                spread(one, lambda r: r.ttft_p99_ms), spread(one, lambda r: r.itl_p99_ms), beyond,
            )  # fmt: skip
    return table


def goals(results: dict[Cell, list[Errors]], saturated: Sequence[Errors]) -> tuple[Table, bool]:
    """Each goal by the worst cell, that by the median of its runs."""

    def worst(figure: Callable[[Errors], float]) -> tuple[float, str]:
        return max((sorted(map(figure, runs))[len(runs) // 2], cell.name) for cell, runs in results.items())

    table = Table("goal", "reached", "limit", "where", "", title="Goals")
    missed = False
    for name, (value, where), limit in (
        ("TTFT error, mean, ms", worst(lambda r: abs(r.ttft_mean_ms)), TTFT_MEAN_MS),
        ("TTFT error, p99, ms", worst(lambda r: r.ttft_p99_ms), TTFT_P99_MS),
        ("|ITL error|, p99, ms", worst(lambda r: r.itl_p99_ms), ITL_P99_MS),
        ("CPU us a token event, saturated", (max(run.cpu_us for run in saturated), ""), 1e6 / EVENTS_PER_S_A_CORE),
    ):
        met = value <= limit
        missed |= not met
        table.add_row(name, f"{value:.3f}", f"{limit:g}", where, "met" if met else "MISSED")
    return table, missed


if __name__ == "__main__":
    sys.exit(main())
