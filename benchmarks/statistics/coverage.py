"""How often our intervals cover and our rulings err, by simulation: the tables of docs/measurement.md.

python benchmarks/statistics/coverage.py [--runs 2000] [--seed 1]
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from queues import chat

from autotune.measure import estimates
from autotune.records.spec import Slo
from autotune.records.trial import Estimate
from autotune.slo.sequential import Counts, boundary, inflation_floor, samples_to_pass, statistic

Floats = NDArray[np.float64]
CONFIDENCE = 0.95


# --- intervals ------------------------------------------------------------------------------------------------------


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


# --- rulings --------------------------------------------------------------------------------------------------------


def bursts(rng: np.random.Generator, n: int, share: float, inflation: float) -> NDArray[np.bool_]:
    """A two-state Markov chain of violations: `share` of them, variance of their number `inflation` times binomial."""
    memory = (inflation - 1) / (inflation + 1)  # autocorrelation memory^k sums to this inflation
    leave_quiet, leave_burst = share * (1 - memory), (1 - share) * (1 - memory)
    state, states = rng.random() < share, np.empty(n, dtype=np.bool_)
    for i, u in enumerate(rng.random(n)):
        states[i] = state
        state = (u >= leave_burst) if state else (u < leave_quiet)
    return states


def rule(events: NDArray[np.bool_], allowed: float, floor: float) -> str:
    """What the judge rules on these violations."""
    counts = Counts(judged=len(events), violated=int(events.sum()), inflation=max(floor, estimates.inflation(events)))
    reached, above = statistic(counts, allowed), events.mean() > allowed
    bound = boundary(CONFIDENCE)
    return "pass" if reached <= -bound and not above else "fail" if reached >= bound and above else "unsure"


def burst_rulings(runs: int, rng: np.random.Generator) -> None:
    print(f"\nRulings on Markov-modulated violations, % pass / % fail, {runs} runs a cell; n = 1.5 x least to pass")
    print("| SLO | floor | n | D | p*/2 | p* | 2 p* | 4 p* |\n|---|---|---|---|---|---|---|---|")
    for q, floors in ((0.9, (4, 8, 80)), (0.95, (4, 80)), (0.99, (4, 30))):
        for floor in floors:
            n = int(1.5 * samples_to_pass(1 - q, CONFIDENCE, floor))
            for inflation in (1, 4, 10, 30):
                streams = ((bursts(rng, n, (1 - q) * f, inflation) for _ in range(runs)) for f in (0.5, 1, 2, 4))
                cells = [_cell(stream, 1 - q, floor) for stream in streams]
                print(f"| p{100 * q:g} | {floor} | {n} | {inflation} | {' | '.join(cells)} |")


def _cell(streams: Iterable[NDArray[np.bool_]], allowed: float, floor: float) -> str:
    outcomes = Counter(rule(events, allowed, floor) for events in streams)
    return f"{100 * outcomes['pass'] / outcomes.total():.1f} / {100 * outcomes['fail'] / outcomes.total():.1f}"


def queue_rulings(runs: int, rng: np.random.Generator) -> None:
    print("\nThe same on simulated continuous batching: limits put where the true share is the column's")
    print("| loop | metric | SLO | D | floor | n | p*/2 | p* | 2 p* |\n|---|---|---|---|---|---|---|---|---|")
    for name, metric, stream, clients in _queues(rng):
        for q in (0.9, 0.95, 0.99):
            slo = Slo(metric=f"{metric}.p{100 * q:g}", limit=1)
            floor = inflation_floor(slo, open_loop=clients is None, in_flight=clients)
            n = int(1.5 * samples_to_pass(1 - q, CONFIDENCE, floor))
            limits = [np.quantile(stream, 1 - factor * (1 - q)) for factor in (0.5, 1, 2)]
            cells = [_cell(_levels(rng, stream > limit, n, runs), 1 - q, floor) for limit in limits]
            d = _inflation(stream > limits[1])
            print(f"| {name} | {metric} | p{100 * q:g} | {d:.1f} | {floor:g} | {n} | {' | '.join(cells)} |")


def _levels(rng: np.random.Generator, over: NDArray[np.bool_], n: int, runs: int) -> Iterator[NDArray[np.bool_]]:
    return (over[at : at + n] for at in rng.integers(0, len(over) - n, runs))


def _queues(rng: np.random.Generator) -> Iterator[tuple[str, str, Floats, int | None]]:
    """(loop, metric, its values in order of arrival, clients or None for an open loop)."""
    metrics, size = ("ttft_ms", "tpot_ms"), 1_000_000
    for clients, seats in ((8, 256), (8, 4), (16, 8), (64, 256), (64, 16)):
        for metric, stream in zip(metrics, chat(rng, size, clients=clients, max_seqs=seats), strict=True):
            yield f"{clients} clients, {seats} seats", metric, stream[2000:], clients
    for load, seats in ((0.7, 16), (0.85, 16), (0.85, 64)):
        for metric, stream in zip(metrics, chat(rng, size, load=load, max_seqs=seats), strict=True):
            yield f"Poisson {load:g}, {seats} seats", metric, stream[2000:], None


def _inflation(over: NDArray[np.bool_], block: int = 1000) -> float:
    """The true D of a long stream, from blocks of the size of a level."""
    means = over[: len(over) // block * block].reshape(-1, block).mean(axis=1)
    return float(block * means.var(ddof=1) / (over.mean() * (1 - over.mean())))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=("intervals", "bursts", "queues"))
    options = parser.parse_args()
    parts = {"intervals": intervals, "bursts": burst_rulings, "queues": queue_rulings}
    for name, part in parts.items():
        if options.only in {None, name}:
            part(options.runs, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
