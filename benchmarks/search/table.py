"""The report: a table a landscape, the ratios to the best rival, and where ours loses. Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

import numpy as np

from benchmarks.search.figures import (
    NEAR,
    VERY_NEAR,
    Interval,
    Ratio,
    crashed_ratio,
    final_quality,
    launches_to,
    median_of,
    overall,
    ratio,
    seconds_to,
)
from benchmarks.search.landscapes import HELD_OUT, Machine
from benchmarks.search.protocol import Run
from benchmarks.search.strategies import OURS, RIVALS, VARIANTS

BAR = 1.3  # a wrong prior may cost so much over the best strategy without one
BEATEN = 1.002  # a quality beyond this says that the stored optimum is none

By = Mapping[str, Mapping[str, Sequence[Run]]]
"""Runs by landscape and strategy."""


def by_landscape(runs: Sequence[Run]) -> By:
    """Sort runs."""
    found: dict[str, dict[str, list[Run]]] = {}
    for run in runs:
        found.setdefault(run.landscape, {}).setdefault(run.strategy, []).append(run)
    return found


def report(runs: Sequence[Run], launches: int) -> str:
    """Return everything as Markdown."""
    found = by_landscape(runs)
    parts = [*_headline(found, launches), *_losses(found, launches), *_variants(found, launches)]
    for name in sorted(found):
        parts += ["", *_landscape(name, found[name], launches)]
    return "\n".join([*parts, *_beaten(runs), ""])


# --- one landscape ----------------------------------------------------------------------------------------------------


def _landscape(name: str, runs: Mapping[str, Sequence[Run]], launches: int) -> Iterator[str]:
    seeds = max(len(each) for each in runs.values())
    held = ", held out" if name.partition("@")[0] in HELD_OUT else ""
    yield f"### {name}{held} ({launches} launches, {seeds} seeds)"
    yield ""
    yield "| strategy | launches to 5 % | to 1 % | engine-minutes to 5 % | crashed | handed over | CPU s a launch |"
    yield "|---|---|---|---|---|---|---|"
    for strategy, own in sorted(runs.items(), key=lambda item: _rank(item[1], launches)):
        yield _row(strategy, own, launches)


def _rank(runs: Sequence[Run], launches: int) -> tuple[float, float]:
    reached = [min(launches_to(run, NEAR), launches + 1.0) for run in runs]
    return median_of(reached).median, float(np.mean(reached))


def _row(strategy: str, runs: Sequence[Run], launches: int) -> str:
    near, very_near = (median_of([launches_to(run, share) for run in runs]) for share in (NEAR, VERY_NEAR))
    minutes = median_of([seconds_to(run, NEAR) / 60 for run in runs])
    cpu_s = sum(step.asked_s for run in runs for step in run.steps) / max(1, sum(len(run.steps) for run in runs))
    quality = float(np.median([final_quality(run) for run in runs]))
    cells = [_shown(near, launches), _shown(very_near, launches), _shown(minutes, None)]
    return f"| {strategy} | {' | '.join(cells)} | {crashed_ratio(runs):.0%} | {quality:.1%} | {cpu_s:.2f} |"


def _shown(found: Interval, launches: int | None) -> str:
    def number(value: float) -> str:
        if math.isinf(value):
            return "never" if launches is None else f">{launches}"
        return f"{value:.0f}"

    if number(found.low) == number(found.high):
        return number(found.median)
    return f"{number(found.median)} ({number(found.low)}-{number(found.high)})"


# --- ratios -----------------------------------------------------------------------------------------------------------


def _ratios(found: By, launches: int, of: str = OURS) -> dict[str, tuple[Ratio, Ratio]]:
    """By landscape: launches, and engine-seconds."""
    ratios = {}
    for name, runs in found.items():
        rivals = {strategy: own for strategy, own in runs.items() if strategy in RIVALS}
        if of not in runs or not rivals:
            continue
        most_s = max(sum(step.engine_s for step in run.steps) for own in runs.values() for run in own)
        ratios[name] = (
            ratio(name, _launches(runs[of]), {s: _launches(own) for s, own in rivals.items()}, launches + 1.0),
            ratio(name, _seconds(runs[of]), {s: _seconds(own) for s, own in rivals.items()}, most_s),
        )
    return ratios


def _launches(runs: Sequence[Run]) -> list[float]:
    return [launches_to(run, NEAR) for run in runs]


def _seconds(runs: Sequence[Run]) -> list[float]:
    return [seconds_to(run, NEAR) for run in runs]


def _headline(found: By, launches: int) -> Iterator[str]:
    ratios = _ratios(found, launches)
    if not ratios:
        return
    yield "## Ours over the best rival, to within 5 % of the feasible optimum"
    yield ""
    yield "| landscape | launches | engine-seconds | best rival by launches |"
    yield "|---|---|---|---|"
    for machine, names in groupby(sorted(ratios, key=_machine), key=_machine):
        group = list(names)
        for name in group:
            first, second = ratios[name]
            yield f"| {name} | {_ratio(first)} | {_ratio(second)} | {first.rival} |"
        means = [overall([ratios[name][i] for name in group]) for i in (0, 1)]
        label = f"{machine} (the answer key: an upper bound)" if machine == Machine.SAME else machine
        yield f"| **all {label}** | **{means[0]:.2f}** | **{means[1]:.2f}** | |"


def _machine(name: str) -> str:
    return name.partition("@")[2]


def _ratio(found: Ratio) -> str:
    if found.neither:
        return "neither came near"
    sign = "≤ " if found.bound and found.value < 1 else ""
    return f"{sign}{found.value:.2f} ({found.low:.2f}-{found.high:.2f})"


def _losses(found: By, launches: int) -> Iterator[str]:
    ratios = _ratios(found, launches)
    lost = [name for name, (first, second) in ratios.items() if first.lost or second.lost]
    if not ratios:
        return
    yield ""
    yield f"Ours loses on: {', '.join(sorted(lost))}." if lost else "Ours loses nowhere."


def _variants(found: By, launches: int) -> Iterator[str]:
    """What a wrong prior costs: never more than BAR over the best strategy without one."""
    rows = {variant: _ratios(found, launches, of=variant) for variant in VARIANTS}
    if not any(rows.values()):
        return
    yield ""
    yield f"Without a true prior, launches over the best rival's (the bar is {BAR:g}):"
    yield ""
    for variant, ratios in rows.items():
        told = ", ".join(
            f"{name} {first.value:.2f}{'' if first.value <= BAR else ' (!)'}" for name, (first, _) in ratios.items()
        )
        yield f"- {variant}: {told or 'not run'}"


def _beaten(runs: Sequence[Run]) -> Iterator[str]:
    best: dict[str, float] = {}
    for run in runs:
        best[run.landscape] = max([best.get(run.landscape, 0.0), *(step.quality or 0.0 for step in run.steps)])
    for name, quality in sorted(best.items()):
        if quality > BEATEN:
            yield f"\nA strategy beat the stored optimum of {name} by {quality - 1:.1%}: search it again."
