"""Runs what is missing, then prints the report and writes it, with a plot, to runs/bench-search. See the package."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from benchmarks.search.landscapes import HELD_OUT, NAMES, REAL, Machine, landscape
from benchmarks.search.memo import Memo
from benchmarks.search.optima import has_optimum, optimum_of
from benchmarks.search.physics import true_kernel
from benchmarks.search.plot import write_plot
from benchmarks.search.protocol import run
from benchmarks.search.real import TABLE, evaluator_of, optimum, real_landscape
from benchmarks.search.results import Results, Task
from benchmarks.search.strategies import OURS, RIVALS, STRATEGIES, VARIANTS, missing
from benchmarks.search.table import report

FOLDER = Path("runs/bench-search")
SEEDS, LAUNCHES, REAL_LAUNCHES = 20, 50, 40
QUICK_SEEDS, QUICK_LAUNCHES = 3, 30
COSTLY = ("GP", "GP+pf")  # half a minute of the tuner's own CPU a run: half of the seeds
QUICK = ("chat-8b-h100@structural", "reasoning-32b-h200@constants", "batch-32b-h100@structural")
QUICK_STRATEGIES = ("random+pf", "auto_tune grid", "TPE, constrained+pf", "TPE of 7+pf", "TBA-TPE+pf", OURS)
STRONGEST = ("TPE, constrained+pf", "TPE of 7+pf", "TBA-TPE+pf", "GP+pf")
"""Rivals on machines that are only reported apart."""


NOT_ON_REAL = frozenset(name for name in RIVALS if "grid" in name or name.endswith("+pf"))
"""The shipped grid lies outside the one that was measured, of which a preflight excludes nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Strategies on landscapes, with seeds 1 to `seeds`."""

    landscapes: tuple[str, ...]
    strategies: tuple[str, ...]
    seeds: int
    launches: int

    def tasks(self) -> list[Task]:
        """Seed by seed, so that a run that was cut short has the same seeds of all."""
        return [
            Task(landscape=name, strategy=strategy, seed=seed, launches=self.launches)
            for seed in range(1, self.seeds + 1)
            for name in self.landscapes
            for strategy in self.strategies
            if why_not(name) is None and missing(strategy) is None and (name != REAL or strategy not in NOT_ON_REAL)
        ]


def why_not(name: str) -> str | None:
    """What is missing before a landscape can be searched; None where nothing is."""
    if name == REAL:
        return None if TABLE.exists() else ".venv-vllm/bin/python benchmarks/search/measure_vllm_cpu.py measures it"
    return None if has_optimum(name) else f"python -m benchmarks.search.optima {name} searches its optimum"


def _on(*machines: Machine) -> tuple[str, ...]:
    return tuple(f"{name}@{machine}" for name in NAMES for machine in machines)


FULL = (
    Block(
        landscapes=_on(Machine.CONSTANTS, Machine.STRUCTURAL),
        strategies=tuple(name for name in (*RIVALS, OURS) if name not in COSTLY),
        seeds=SEEDS,
        launches=LAUNCHES,
    ),
    Block(
        landscapes=_on(Machine.CONSTANTS, Machine.STRUCTURAL), strategies=COSTLY, seeds=SEEDS // 2, launches=LAUNCHES
    ),
    Block(landscapes=(REAL,), strategies=(*RIVALS, OURS), seeds=SEEDS, launches=REAL_LAUNCHES),
    Block(landscapes=_on(Machine.SAME), strategies=(*STRONGEST, OURS), seeds=SEEDS // 2, launches=LAUNCHES),
    Block(
        landscapes=tuple(name for name in _on(Machine.STRUCTURAL) if name.split("@")[0] not in HELD_OUT),
        strategies=VARIANTS,
        seeds=SEEDS // 2,
        launches=LAUNCHES,
    ),
)


def main(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    tasks = [task for block in _blocks(args) for task in block.tasks()]
    for name in dict.fromkeys(name for block in _blocks(args) for name in block.landscapes):
        if (why := why_not(name)) is not None:
            print(f"{name} is left out: {why}", file=sys.stderr)
    for name in args.only or STRATEGIES:
        if (needs := missing(name)) is not None:
            print(f"{name} is left out: pip install {needs}", file=sys.stderr)
    results = Results(FOLDER / "runs")
    left = run_missing(results, tasks, args.processes, time.monotonic() + args.seconds)
    runs = list(results.of(tasks))
    if left:
        print(f"{left} of {len(tasks)} runs are missing: run it again to go on", file=sys.stderr)
    if not runs:
        return 1
    text = report(runs, max(task.launches for task in tasks))
    (FOLDER / "report.md").write_text(text, encoding="utf-8")
    write_plot(runs, FOLDER / "regret.html")
    print(text)
    print(f"{FOLDER / 'report.md'}, {FOLDER / 'regret.html'}", file=sys.stderr)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.search")
    parser.add_argument("--full", action="store_true", help="every strategy and landscape, 20 seeds")
    parser.add_argument("--on", nargs="+", metavar="NAME@MACHINE", help="these landscapes")
    parser.add_argument("--only", nargs="+", choices=STRATEGIES, metavar="STRATEGY", help=", ".join(STRATEGIES))
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--launches", type=int)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further run after so long")
    parser.add_argument("--processes", type=int, default=min(2, os.cpu_count() or 1))
    return parser


def _blocks(args: argparse.Namespace) -> Sequence[Block]:
    if args.full and not (args.on or args.only):
        return FULL
    quick = Block(
        landscapes=tuple(args.on or (FULL[0].landscapes if args.full else QUICK)),
        strategies=tuple(args.only or ((*RIVALS, OURS) if args.full else QUICK_STRATEGIES)),
        seeds=args.seeds or (SEEDS if args.full else QUICK_SEEDS),
        launches=args.launches or (LAUNCHES if args.full else QUICK_LAUNCHES),
    )
    return (quick,)


def run_missing(results: Results, tasks: Sequence[Task], processes: int, until_s: float) -> int:
    """Make the runs that aren't there; return how many are still missing."""
    wanted = [task for task in tasks if results.known(task) is None]
    if not wanted:
        return 0
    true_kernel()  # compiled here, once, for all that are forked
    began, done = time.monotonic(), 0
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("fork")) as pool:
        for future in as_completed([pool.submit(_made, results, task, until_s) for task in wanted]):
            done += future.result()
            _progress(done, len(wanted), time.monotonic() - began)
    return len(wanted) - done


def _made(results: Results, task: Task, until_s: float) -> bool:
    if time.monotonic() > until_s:
        return False
    real = task.landscape == REAL
    hill = real_landscape() if real else landscape(task.landscape)
    found = run(
        task.strategy,
        STRATEGIES[task.strategy],
        hill,
        seed=task.seed,
        launches=task.launches,
        optimum=optimum() if real else optimum_of(hill),
        evaluator=evaluator_of() if real else _memo().evaluator(),
    )
    results.keep(task, found)
    return True


@cache
def _memo() -> Memo:
    """One connection a process."""
    return Memo.at(FOLDER / "memo.sqlite")


def _progress(done: int, wanted: int, spent_s: float) -> None:
    left_s = spent_s / max(1, done) * (wanted - done)
    print(f"\r{done}/{wanted} runs, about {left_s / 60:.0f} min left ", end="", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
