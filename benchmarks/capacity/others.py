"""The usual ways to find a capacity, re-stated: bisection, a ladder of rates, isotonic regression of repeated levels.

All meet the same engines in the same bounds; levels that the product's guard finds overloaded end early for them, too.
A level holds when the p99 of TTFT and of TPOT lie within their limits.
"""

from __future__ import annotations

from collections.abc import Callable
from math import exp, log

import numpy as np
from numpy.typing import NDArray
from scipy.interpolate import PchipInterpolator

from autotune.models.observed import observe
from benchmarks.capacity.rig import Requests, Rig
from benchmarks.capacity.scenarios import Scenario
from benchmarks.capacity.workload import draw

Floats = NDArray[np.float64]
LEVEL_S, WARMUP_S = 60.0, 5.0
BISECTIONS, RUNGS, GRID, REPLICATES, REFINED = 6, 10, 6, 2, 2

Margin = Callable[[float], float]
"""ln of the worst p99 over its limit at a rate; above 0 the level fails."""


def margins(scenario: Scenario, rig: Rig) -> Margin:
    """Fixed-length levels on one launch."""

    def margin(rate: float) -> float:
        count = int(rate * (LEVEL_S + WARMUP_S) * 2) + 100
        at_s, prompt, output = draw(scenario.workload, count, rig.seed + rig.levels)
        inside = at_s / rate < LEVEL_S + WARMUP_S
        requests = Requests(at_s=at_s[inside] / rate, prompt=prompt[inside], output=output[inside])
        level = rig.level(requests, rate=rate, window_s=(WARMUP_S, WARMUP_S + LEVEL_S))
        seen = observe(level).seen
        worst = -5.0
        for base, limit in (("ttft_ms", scenario.ttft_ms), ("tpot_ms", scenario.tpot_ms)):
            p99 = seen.quantiles(base, (0.99,))[0]
            worst = max(worst, log(max(p99, 1e-3) / limit) if np.isfinite(p99) else -5.0)
        return max(worst, 0.2) if level.stopped else worst

    return margin


def bisection(margin: Margin, low: float, high: float) -> float:
    """Halve the bracket, on a logarithmic scale."""
    for _ in range(BISECTIONS):
        middle = (low * high) ** 0.5
        low, high = (low, middle) if margin(middle) > 0 else (middle, high)
    return (low * high) ** 0.5


def ladder(margin: Margin, low: float, high: float) -> float:
    """Ten rates from low to high; interpolated between the last that holds and the first after it that doesn't."""
    rates = np.linspace(low, high, RUNGS)
    before, held = margin(float(rates[0])), float(rates[0])
    if before > 0:
        return held
    found = float(rates[-1])
    crossed = False
    for rate in rates[1:].tolist():
        here = margin(rate)
        if here > 0 and not crossed:
            found, crossed = held + (rate - held) * -before / (here - before), True
        before, held = here, rate
    return found


def isotonic(margin: Margin, low: float, high: float) -> float:
    """Replicated levels on a grid, margins made monotone (PAVA), a PCHIP through them, and again near its root."""
    seen = [(r, margin(r)) for r in np.geomspace(low, high, GRID).tolist() for _ in range(REPLICATES)]
    for _ in range(REFINED):
        at = _root(seen, low, high)
        seen += [(at, margin(at)) for _ in range(REPLICATES)]
    return _root(seen, low, high)


def _root(seen: list[tuple[float, float]], low: float, high: float) -> float:
    rates = sorted({rate for rate, _ in seen})
    means = np.array([np.mean([m for r, m in seen if r == rate]) for rate in rates])
    counts = np.array([sum(r == rate for r, _ in seen) for rate in rates], dtype=float)
    fitted = PchipInterpolator(np.log(rates), _pava(means, counts) + 1e-9 * np.arange(len(rates)))
    grid = np.linspace(log(low), log(high), 2000)
    over = np.flatnonzero(fitted(grid) > 0)
    return exp(grid[over[0]]) if len(over) else high


def _pava(values: Floats, weights: Floats) -> Floats:
    """Pool adjacent violators: the nearest rising sequence."""
    blocks: list[list[float]] = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            last, prior = blocks.pop(), blocks.pop()
            total = last[1] + prior[1]
            blocks.append([(last[0] * last[1] + prior[0] * prior[1]) / total, total, last[2] + prior[2]])
    return np.concatenate([np.full(int(count), value) for value, _, count in blocks])


OTHERS = {"bisection, 60 s levels": bisection, "ladder of 10": ladder, "isotonic, replicated": isotonic}
