"""How near do searches of a capacity come, and after how much time under load?

    python -m benchmarks.capacity            # 348 launches of 29 engines; 15 minutes on 2 cores
    python -m benchmarks.capacity --quick    # 15 launches of 5 of them; 1 minute

Every launch is searched by the product (trial.capacity) and by three usual methods, in the same bounds, a factor of 1.6
to 3 off on either side. Everything is virtual time; the engines are those of `benchmarks.capacity.engine`. Results are
kept in RESULTS, so that a run that was ended, by --seconds or otherwise, goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache, partial
from math import exp, log
from pathlib import Path

import numpy as np
from rich.console import Console

from autotune.load import build_level
from autotune.records.spec import LoadSpec
from autotune.records.trial import LevelPlan
from autotune.trial.capacity import Bench, find_capacity
from benchmarks.capacity.others import OTHERS, margins
from benchmarks.capacity.results import OURS, Kept, Result
from benchmarks.capacity.rig import Rig
from benchmarks.capacity.scenarios import GROUPS, Scenario
from benchmarks.capacity.tables import report
from benchmarks.capacity.workload import true_capacity

REPEATS, QUICK_REPEATS = 12, 3
QUICK = ("plain", "prompts first", "few slots", "KV cache a quarter smaller", "pauses")
RESULTS = Path("runs/capacity-benchmark")
SCENARIOS = [scenario for group in GROUPS.values() for scenario in group]


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="benchmarks.capacity")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--group", choices=GROUPS, help="only the engines of this group")
    parser.add_argument("--repeats", type=int, default=REPEATS)
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further engine after so long")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    args = parser.parse_args(argv)
    repeats = QUICK_REPEATS if args.quick else args.repeats
    chosen = [
        name
        for group, members in GROUPS.items()
        for name in (scenario.name for scenario in members)
        if (name in QUICK or not args.quick) and args.group in {None, group}
    ]
    kept = Kept.in_folder(RESULTS)
    complete = run_missing(kept, chosen, repeats, args.processes, time.monotonic() + args.seconds)
    found = [r for r in kept.results() if r.scenario in chosen and r.repeat < repeats]
    if not complete:
        print(f"{len(found)} results so far: run it again to go on", file=sys.stderr)
    return report(found, Console(width=120))


def run_missing(kept: Kept, names: Sequence[str], repeats: int, processes: int, until_s: float) -> bool:
    """Search the launches that aren't among the results, a launch a task; whether all are done."""
    missing = [(name, repeat) for repeat in range(repeats) for name in names if not kept.has(name, repeat)]
    with ProcessPoolExecutor(processes) as pool:
        tasks = [pool.submit(run_launch, name, repeat, until_s) for name, repeat in missing]
        for task in as_completed(tasks):
            kept.add(task.result())
    return all(kept.has(*each) for each in missing)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What is searched, between which bounds; `truth` is its capacity."""

    scenario: Scenario
    repeat: int
    seed: int
    truth: float
    bounds: tuple[float, float]

    def rig(self) -> Rig:
        return Rig(physics=self.scenario.physics, objective=self.scenario.objective(*self.bounds), seed=self.seed)


@cache
def truth_of(index: int) -> float:
    return true_capacity(SCENARIOS[index])


def run_launch(name: str, repeat: int, until_s: float) -> list[Result]:
    """All searches of one launch; nothing once it is too late."""
    if time.monotonic() > until_s:
        return []
    index = next(i for i, scenario in enumerate(SCENARIOS) if scenario.name == name)
    seed, truth = index * 1000 + repeat, truth_of(index)
    rng = np.random.default_rng(seed)
    bounds = truth * exp(-rng.uniform(0.5, 1.1)), truth * exp(rng.uniform(0.5, 1.1))
    launch = Launch(scenario=SCENARIOS[index], repeat=repeat, seed=seed, truth=truth, bounds=bounds)
    return [ours(launch), *(other(method, launch) for method in OTHERS)]


def ours(launch: Launch) -> Result:
    rig, truth = launch.rig(), launch.truth
    bench = Bench(plan=partial(planned, launch), run=rig.run)
    found = find_capacity(rig.objective, bench, twin=launch.scenario.twin())
    value = found.capacity.value
    return Result(
        scenario=launch.scenario.name,
        repeat=launch.repeat,
        method=OURS,
        error=log(value.value / truth) if value.value else -9.0,
        load_s=rig.spent_s,
        how=found.capacity.method,
        twin_error=log(found.twin_said / truth) if found.twin_said else None,
        covered=(value.low or 0.0) <= truth <= (value.high or truth),
        doubts=found.capacity.doubts,
    )


def planned(launch: Launch, load: LoadSpec, index: int) -> LevelPlan:
    return build_level(launch.scenario.workload, load, seed=launch.seed * 1000 + index)


def other(method: str, launch: Launch) -> Result:
    rig = launch.rig()
    value = OTHERS[method](margins(launch.scenario, rig), *launch.bounds)
    return Result(
        scenario=launch.scenario.name,
        repeat=launch.repeat,
        method=method,
        error=log(value / launch.truth),
        load_s=rig.spent_s,
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
