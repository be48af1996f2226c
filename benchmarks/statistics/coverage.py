"""How often our intervals cover, by simulation: a table of docs/measurement.md.

python -m benchmarks.statistics.coverage [--runs 2000] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from autotune.measure import estimates
from autotune.records.trial import Estimate

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


def correlated(rng: np.random.Generator, n: int, phi: float) -> Floats:
    """Standard normal AR(1)."""
    noise, series = rng.standard_normal(n), np.empty(n)
    series[0] = noise[0]
    for i in range(1, n):
        series[i] = phi * series[i - 1] + math.sqrt(1 - phi * phi) * noise[i]
    return series


def lognormal(phi: float, sigma: float) -> Callable[[np.random.Generator, int], Floats]:
    return lambda rng, n: np.exp(sigma * (rng.standard_normal(n) if phi == 0 else correlated(rng, n, phi)))


def normal_quantile(sigma: float) -> Callable[[float], float]:
    return lambda q: math.exp(sigma * NormalDist().inv_cdf(q))


STREAMS = {
    "iid log-normal, sigma 0.5": (lognormal(0, 0.5), normal_quantile(0.5), math.exp(0.125)),
    "iid log-normal, sigma 1": (lognormal(0, 1), normal_quantile(1), math.exp(0.5)),
    "iid Pareto 2.5": (lambda rng, n: rng.pareto(2.5, n) + 1, lambda q: (1 - q) ** -0.4, 2.5 / 1.5),
    "AR(1) 0.5, log-normal": (lognormal(0.5, 0.5), normal_quantile(0.5), math.exp(0.125)),
    "AR(1) 0.8, log-normal": (lognormal(0.8, 0.5), normal_quantile(0.5), math.exp(0.125)),
    "AR(1) 0.9, log-normal": (lognormal(0.9, 0.5), normal_quantile(0.5), math.exp(0.125)),
}


def intervals(runs: int, rng: np.random.Generator) -> None:
    print(f"\nCoverage of {CONFIDENCE:.0%} intervals, % (p99: also % without an upper bound), {runs} runs a row")
    print("| stream | n | mean | p50 | p90 | p99 | p99 open |\n|---|---|---|---|---|---|---|")
    for name, (draw, quantile, mean) in STREAMS.items():
        for n in (200, 800, 3000):
            covered: Counter[str] = Counter()
            for _ in range(runs):
                series = draw(rng, n)
                covered["mean"] += _covers(estimates.mean(series, CONFIDENCE), mean)
                for q in (0.5, 0.9, 0.99):
                    estimate = estimates.quantile(series, q, CONFIDENCE)
                    covered[f"p{q * 100:g}"] += _covers(estimate, quantile(q))
                    covered["open"] += q == 0.99 and estimate is not None and estimate.high is None
            shares = (f"{100 * covered[key] / runs:.1f}" for key in ("mean", "p50", "p90", "p99", "open"))
            print(f"| {name} | {n} | {' | '.join(shares)} |")


def _covers(estimate: Estimate | None, truth: float) -> bool:
    if estimate is None:
        return False
    return (estimate.low is None or estimate.low <= truth) and (estimate.high is None or truth <= estimate.high)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    intervals(options.runs, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
