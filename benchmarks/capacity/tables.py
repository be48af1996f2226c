"""Tables of results, and which goals they meet."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from benchmarks.capacity.others import OTHERS
from benchmarks.capacity.results import OURS, Result
from benchmarks.capacity.scenarios import GROUPS, TWIN_WRONG

WITHIN = 0.05
GOAL_PLAIN, GOAL_NOISY, GOAL_TIME, GOAL_GUARD = 0.90, 0.75, 1 / 3, 0.90
WRONG_BY = 0.10  # a twin off by more should have been refused

_NOISY = {scenario.name for group in GROUPS.values() for scenario in group if scenario.noisy}


def report(results: Sequence[Result], console: Console) -> int:
    """Print a table an engine and a method for each group, then the guard; 0 when all goals are met."""
    met = []
    for group, members in GROUPS.items():
        names = [scenario.name for scenario in members]
        found = [r for r in results if r.scenario in names]
        if found:
            console.print(by_scenario(found, group), by_method(found, group))
            met += [] if group == TWIN_WRONG else goals(found, console)
            console.print()
    met.append(guard([r for r in results if r.method == OURS], console))
    return 0 if all(met) else 1


def by_scenario(results: Sequence[Result], group: str) -> Table:
    columns = ("engine", "n", "median error", "within 5 %", "load s", "by twin", "in interval", "twin off", "refused")
    title = f"autotune, {group} (* noisy). Twin off: by more than 10 %; refused: of these, by the guard"
    table = Table(*columns, title=title)
    for name in dict.fromkeys(r.scenario for r in results):
        mine = [r for r in results if r.scenario == name and r.method == OURS]
        wrong = [r for r in mine if is_wrong(r)]
        table.add_row(
            name + ("*" if name in _NOISY else ""),
            str(len(mine)),
            f"{np.median([r.error for r in mine]):+.1%}",
            f"{within(mine):.0%}",
            f"{np.mean([r.load_s for r in mine]):.0f}",
            f"{np.mean([r.how == 'twin' for r in mine]):.0%}",
            f"{np.mean([r.covered for r in mine]):.0%}",
            str(len(wrong)),
            str(sum(r.how != "twin" for r in wrong)),
        )
    return table


def by_method(results: Sequence[Result], group: str) -> Table:
    columns = ("method", "within 5 %, steady", "within 5 %, noisy", "within 10 %", "median |error|", "bias", "load s")
    table = Table(*columns, title=f"All methods, {group}")
    for method in (OURS, *OTHERS):
        found = [r for r in results if r.method == method]
        errors = np.array([r.error for r in found])
        table.add_row(
            method,
            _share(within(steady(found))),
            _share(within(noisy(found))),
            f"{within(found, 0.10):.0%}",
            f"{np.median(np.abs(errors)):.1%}",
            f"{np.median(errors):+.1%}",
            f"{mean_load_s(found):.0f}",
        )
    return table


def goals(results: Sequence[Result], console: Console) -> list[bool]:
    """Print each goal with what was reached. The best other is that with the most runs within 5 % a second of load."""
    mine = [r for r in results if r.method == OURS]
    rivals = {name: [r for r in results if r.method == name] for name in OTHERS}
    best = max(rivals, key=lambda name: within(rivals[name]) / mean_load_s(rivals[name]))
    ratios = {name: mean_load_s(mine) / mean_load_s(found) for name, found in rivals.items()}
    console.print("time under load over that of: " + ", ".join(f"{n} {share:.0%}" for n, share in ratios.items()))
    console.print(intervals(mine))
    return [
        told(console, "within 5 %, steady engines", within(steady(mine)), GOAL_PLAIN),
        told(console, "within 5 %, noisy engines", within(noisy(mine)), GOAL_NOISY),
        told(console, f"time under load over that of the best other ({best})", ratios[best], GOAL_TIME, at_most=True),
    ]


def intervals(mine: Sequence[Result]) -> str:
    """How often an interval held the truth, by how it was found."""
    by: Mapping[str, list[Result]] = {how: [r for r in mine if r.how == how] for how in ("twin", "levels")}
    told = [f"{np.mean([r.covered for r in found]):.0%} of {len(found)} by {how}" for how, found in by.items() if found]
    return f"intervals that hold the truth: {', '.join(told)}"


def guard(mine: Sequence[Result], console: Console) -> bool:
    """Print how many of the wrong twins were refused, and of the right ones, with Wilson's interval at 95 %."""
    wrong, right = [r for r in mine if is_wrong(r)], [r for r in mine if r.twin_error is not None and not is_wrong(r)]
    if right:
        console.print(f"twins right within 10 % that were refused: {_counted(right)}")
    if not wrong:
        console.print("twins off by more than 10 %: none")
        return True
    share = float(np.mean([r.how != "twin" for r in wrong]))
    return told(console, f"twins off by more than 10 % refused ({_counted(wrong)})", share, GOAL_GUARD)


def _counted(results: Sequence[Result]) -> str:
    refused = sum(r.how != "twin" for r in results)
    bounds = binomtest(refused, len(results)).proportion_ci(0.95, method="wilson")
    return f"{refused} of {len(results)}, {bounds.low:.0%} to {bounds.high:.0%}"


def told(console: Console, what: str, value: float, goal: float, *, at_most: bool = False) -> bool:
    if np.isnan(value):
        return True
    met = value <= goal if at_most else value >= goal
    console.print(f"{what}: {value:.0%}, goal {'≤' if at_most else '≥'} {goal:.0%}: {'met' if met else 'NOT met'}")
    return met


def steady(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.scenario not in _NOISY]


def noisy(results: Sequence[Result]) -> list[Result]:
    return [r for r in results if r.scenario in _NOISY]


def within(results: Sequence[Result], bound: float = WITHIN) -> float:
    return float(np.mean([abs(r.error) <= bound for r in results])) if results else float("nan")


def mean_load_s(results: Sequence[Result]) -> float:
    return float(np.mean([r.load_s for r in results]))


def is_wrong(result: Result) -> bool:
    return result.twin_error is not None and abs(result.twin_error) > WRONG_BY


def _share(value: float) -> str:
    return "" if np.isnan(value) else f"{value:.0%}"
