"""The rules against labelled failures: `python -m benchmarks.classification`. Exit 1 when a target is missed."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from scipy.stats import binomtest

from benchmarks.classification.cases import ACTIONS, Case, cases, is_false_lesson

RIGHT_ACTION = 0.95  # of the failures whose action the rules tell; those left unknown are counted apart


def main() -> int:
    console = Console(width=110)
    every = cases()
    scored = [case for case in every if case.scored]
    console.print(confusion(scored, "Scored: lines as engines wrote them, and traps (rows: right, columns: told)"))
    console.print(confusion([case for case in every if not case.scored], "Not scored: issues told in words"))
    console.print(summary(scored))
    console.print(mistakes(scored))
    lessons = sum(map(is_false_lesson, scored))
    told = [case for case in scored if case.told != "unknown"]
    right = sum(case.told == case.action for case in told)
    console.print(
        f"false lessons: {lessons} (none allowed); right action: {right}/{len(told)} (at least {RIGHT_ACTION:.0%})"
    )
    return int(lessons > 0 or right < RIGHT_ACTION * len(told))


def confusion(some: Sequence[Case], title: str) -> Table:
    counts = Counter((case.action, case.told) for case in some)
    table = Table("", *ACTIONS, title=title)
    for action in ACTIONS:
        table.add_row(action, *(str(counts[action, told] or "") for told in ACTIONS))
    return table


def summary(scored: Sequence[Case]) -> Table:
    table = Table("split", "cases", "right action of those told", "left unknown", "false lessons")
    for split in ("design", "held_out"):
        some = [case for case in scored if case.split == split]
        told = [case for case in some if case.told != "unknown"]
        table.add_row(
            split,
            str(len(some)),
            share(sum(case.told == case.action for case in told), len(told)),
            share(sum(case.told == "unknown" != case.action for case in some), len(some)),
            share(sum(map(is_false_lesson, some)), len(some)),
        )
    return table


def share(count: int, total: int) -> str:
    interval = binomtest(count, total).proportion_ci(method="wilson")
    return f"{count}/{total} ({interval.low:.0%} to {interval.high:.0%})"


def mistakes(scored: Sequence[Case]) -> Table:
    table = Table("source", "split", "right", "told", "line", title="Not told right")
    for case in scored:
        if case.told != case.action:
            table.add_row(case.source, case.split, case.action, case.told, case.log.splitlines()[-1][:60])
    return table


if __name__ == "__main__":
    sys.exit(main())
