"""How often two equal configurations are told apart, by launches and repeats: a table of docs/measurement.md.

python -m benchmarks.statistics.pairs [--pairs 4000] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from autotune.measure import noise
from autotune.records.trial import Estimate

Floats = NDArray[np.float64]
Effects = Callable[[np.random.Generator, tuple[int, ...]], Floats]
REPEAT_SD = 0.04

EFFECTS: dict[str, Effects] = {
    "none": lambda _rng, size: np.zeros(size),
    "normal, 5 %": lambda rng, size: rng.normal(0, 0.05, size),
    "Student's t, 3 degrees": lambda rng, size: 0.05 * rng.standard_t(3, size),
    "Cauchy": lambda rng, size: 0.02 * rng.standard_cauchy(size).clip(-50, 50),
    "two modes, 30 % apart": lambda rng, size: np.where(rng.random(size) < 0.5, -0.3, 0.0),
    "one launch in five 15 % slower": lambda rng, size: np.where(rng.random(size) < 0.2, -0.15, 0.0),
    "one launch in ten 30 % slower": lambda rng, size: np.where(rng.random(size) < 0.1, -0.3, 0.0),
}


def launches(logs: list[list[float]]) -> list[list[Estimate]]:
    values = 300 * np.exp(np.array(logs))
    return [[Estimate(value=v, low=None, high=None, n=1000) for v in launch] for launch in values.tolist()]


def told_apart(rng: np.random.Generator, shared: Floats, repeats: int, better: float = 0.0) -> float:
    """% of pairs with a winner. `shared`: what each launch differs by, (pairs, 2, launches, 1); `better`: by how much
    the second configuration is faster, as a logarithm."""
    logs = shared + rng.normal(0, REPEAT_SD, (*shared.shape[:3], repeats))
    logs[:, 1] += better
    won = sum(noise.compare(launches(a), launches(b)).winner != noise.TIE for a, b in logs.tolist())
    return 100 * won / len(logs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=4000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    rng = np.random.default_rng(options.seed)
    print(f"% of pairs told apart, {options.pairs} pairs a cell, repeats differing by {REPEAT_SD:.0%}")
    print("| launches differ by | repeats | 2 each | 3 each | 5 each | 5 each, one 20 % better |")
    print("|---|---|---|---|---|---|")
    for name, effects in EFFECTS.items():
        for repeats in (1, 3):
            cells = [told_apart(rng, effects(rng, (options.pairs, 2, count, 1)), repeats) for count in (2, 3, 5)]
            cells.append(told_apart(rng, effects(rng, (options.pairs, 2, 5, 1)), repeats, math.log(1.2)))
            print(f"| {name} | {repeats} | {' | '.join(f'{cell:.1f}' for cell in cells)} |", flush=True)


if __name__ == "__main__":
    main()
