"""How often a level errs that stops once its verdict is settled, and what that saves: tables of docs/measurement.md.

python -m benchmarks.statistics.looking [--runs 2000] [--seed 1]

The rule is the program's, compiled; `agree` holds it against `autotune.slo` and `autotune.measure`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from autotune.measure import estimates
from autotune.records.spec import Slo
from autotune.slo.sequential import Counts, boundary, inflation_floor, samples_to_pass, statistic
from autotune.slo.stopping import FIRST_LOOK, INTERVAL_FROM, INTERVAL_TIMES, LOOK_GROWTH, PRECISION
from benchmarks.statistics.queues import chat

Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
CONFIDENCE = 0.95
BOUND_TIMES = 3.0
"""A level ends undecided at so many times the least number of requests for a pass."""
FACTORS = (0.5, 1.0, 2.0, 4.0)
_COSINES, _BLOCKS = estimates.COSINES, 4096


@numba.njit(cache=True)
def variance_of_mean(values: Floats) -> float:
    """That of `estimates`, with Chebyshev's recurrence for the cosines."""
    count, size = max(1, min(_COSINES, values.size // 5)), -(-values.size // _BLOCKS)
    blocks = np.empty(values.size // size)
    for j in range(blocks.size):
        blocks[j] = values[j * size : (j + 1) * size].sum() / size
    projections, centre = np.zeros(count), blocks.mean()
    for j in range(blocks.size):
        step = 2 * math.cos(math.pi * (j + 0.5) / blocks.size)
        before, now = 1.0, step / 2
        for k in range(count):
            projections[k] += now * (blocks[j] - centre)
            before, now = now, step * now - before
    return 2 * np.square(projections).mean() / blocks.size**2


@numba.njit(cache=True)
def inflation(events: Bools) -> float:
    """`estimates.inflation`."""
    n, share = events.size, events.mean()
    if n < 2 or share in (0.0, 1.0):
        return 1.0
    return max(1.0, variance_of_mean(events.astype(np.float64)) * n / (share * (1 - share)))


class Test(NamedTuple):
    """What a level is decided by: steps of the undamped statistic, the allowed share, its bound, the floor of D."""

    bad: float
    good: float
    share: float
    bound: float
    floor: float


def test_of(share: float, floor: float) -> Test:
    bad, good = (statistic(Counts(judged=1, violated=v, inflation=1), share) for v in (1, 0))
    return Test(bad, good, share, boundary(CONFIDENCE), floor)


@numba.njit(cache=True)
def decide(events: Bools, test: Test) -> tuple[int, int]:
    """(1 pass, -1 fail, 0 undecided; requests used) of one level that is looked at all the time."""
    bad, good, share, bound, floor = test
    n, seen, violated = FIRST_LOOK, 0, 0
    while True:
        n = min(n, events.size)
        violated += events[seen:n].sum()
        seen = n
        reached = (violated * bad + (n - violated) * good) / floor
        if abs(reached) >= bound:
            reached *= floor / max(floor, inflation(events[:n]))
            if reached >= bound and violated > share * n:
                return -1, n
            if reached <= -bound and violated <= share * n:
                return 1, n
        if n == events.size:
            return 0, n
        n = math.ceil(n * LOOK_GROWTH) + 1


@numba.njit(cache=True)
def bursts(rng: np.random.Generator, n: int, share: float, inflated: float) -> Bools:
    """A two-state Markov chain of violations: `share` of them, variance of their number `inflated` times binomial."""
    memory = (inflated - 1) / (inflated + 1)  # autocorrelation memory^k sums to this inflation
    leave_quiet, leave_burst = share * (1 - memory), (1 - share) * (1 - memory)
    state, states = rng.random() < share, np.empty(n, dtype=np.bool_)
    for i in range(n):
        states[i] = state
        u = rng.random()
        state = u >= leave_burst if state else u < leave_quiet
    return states


def agree(rng: np.random.Generator) -> None:
    """Raise AssertionError where the compiled rule and the program's differ."""
    for n in (20, 300, 9000):
        events = bursts(rng, n, 0.1, 8.0)
        assert math.isclose(inflation(events), estimates.inflation(events), rel_tol=1e-6), n
        half, t = estimates.half_width(events * 1.0, CONFIDENCE), estimates.student_t(CONFIDENCE, min(_COSINES, n // 5))
        assert math.isclose(t * math.sqrt(variance_of_mean(events * 1.0)), half, rel_tol=1e-6), n
        counts = Counts(judged=n, violated=int(events.sum()), inflation=7)
        test = test_of(0.1, 7)
        reached = (counts.violated * test.bad + (n - counts.violated) * test.good) / test.floor
        assert math.isclose(statistic(counts, 0.1), reached), n


def outcomes(levels: Iterator[Bools], share: float, floor: float) -> Ints:
    """(ruling, requests used) of each level."""
    test = test_of(share, floor)
    return np.array([decide(events, test) for events in levels])


def cell(found: Ints) -> str:
    """% pass / % fail, and the mean number of requests."""
    ruled = found[:, 0]
    return f"{100 * (ruled == 1).mean():.1f} / {100 * (ruled == -1).mean():.1f} ({found[:, 1].mean():.0f})"


def markov(rng: np.random.Generator, runs: int, n: int, share: float, inflated: float) -> Iterator[Bools]:
    return (bursts(rng, n, share, float(inflated)) for _ in range(runs))


def markov_table(runs: int, rng: np.random.Generator) -> None:
    print(f"\nLooking all the time at Markov bursts, % pass / % fail (mean requests), {runs} runs a cell")
    print("| SLO | floor | bound | D | p*/2 | p* | 2 p* | 4 p* |\n|---|---|---|---|---|---|---|---|")
    for q, floor, inflations in (
        (0.9, 8.0, (1, 4, 8)),
        (0.9, 110.0, (1, 10, 30, 110)),
        (0.95, 110.0, (1, 10, 30, 110)),
        (0.99, 32.0, (1, 10, 32)),
        (0.99, 110.0, (1, 10, 30, 110)),
    ):
        share, n = 1 - q, int(BOUND_TIMES * samples_to_pass(1 - q, CONFIDENCE, floor))
        for inflated in inflations:
            cells = [cell(outcomes(markov(rng, runs, n, share * f, inflated), share, floor)) for f in FACTORS]
            print(f"| p{100 * q:g} | {floor:g} | {n} | {inflated} | {' | '.join(cells)} |", flush=True)


def queue_table(runs: int, rng: np.random.Generator) -> None:
    print("\nThe same on simulated continuous batching, with the judge's floors")
    print("| loop | metric | SLO | D | floor | bound | p*/2 | p* | 2 p* |\n|---|---|---|---|---|---|---|---|---|")
    for name, clients, ttft, tpot in queues(rng):
        for metric, stream in (("ttft_ms", ttft), ("tpot_ms", tpot)):
            for q in (0.9, 0.95, 0.99):
                slo = Slo(metric=f"{metric}.p{100 * q:g}", limit=1)
                floor = inflation_floor(slo, open_loop=clients is None, in_flight=clients)
                n = int(BOUND_TIMES * samples_to_pass(1 - q, CONFIDENCE, floor))
                limits = [np.quantile(stream, 1 - factor * (1 - q)) for factor in FACTORS[:3]]
                cells = [cell(outcomes(cuts(rng, stream > limit, n, runs), 1 - q, floor)) for limit in limits]
                d = true_inflation(stream > limits[1])
                print(
                    f"| {name} | {metric} | p{100 * q:g} | {d:.1f} | {floor:g} | {n} | {' | '.join(cells)} |",
                    flush=True,
                )


def cuts(rng: np.random.Generator, over: Bools, n: int, runs: int) -> Iterator[Bools]:
    return (over[at : at + n] for at in rng.integers(0, len(over) - n, runs).tolist())


def queues(rng: np.random.Generator) -> Iterator[tuple[str, int | None, Floats, Floats]]:
    """(loop, clients or None for an open loop, TTFT, TPOT): streams long enough for many levels that don't overlap."""
    for clients, seats in ((8, 4), (16, 8), (64, 256), (64, 16)):
        ttft, tpot = chat(rng, 2_000_000, clients=clients, max_seqs=seats)
        yield f"{clients} clients, {seats} seats", clients, ttft[2000:], tpot[2000:]
    for load, seats in ((0.7, 16), (0.85, 16), (0.85, 64), (0.92, 64)):
        ttft, tpot = chat(rng, 8_000_000, load=load, max_seqs=seats)
        yield f"Poisson {load:g}, {seats} seats", None, ttft[2000:], tpot[2000:]


def true_inflation(over: Bools, block: int = 10_000) -> float:
    """D of a long stream, from blocks much longer than its bursts."""
    means = over[: len(over) // block * block].reshape(-1, block).mean(axis=1)
    return float(block * means.var(ddof=1) / (over.mean() * (1 - over.mean())))


@numba.njit(cache=True)
def clear_of(values: Floats, limit: float, times: float, first: int, t: float) -> int:
    """1 or -1 as soon as an interval so many times as wide lies above or below the limit, else 0."""
    n = first
    while n <= values.size:
        off, half = values[:n].mean() - limit, t * math.sqrt(variance_of_mean(values[:n]))
        if abs(off) > times * half:
            return 1 if off > 0 else -1
        n = math.ceil(n * LOOK_GROWTH) + 1
    return 0


@numba.njit(cache=True)
def when_precise(values: Floats, precision: float, first: int, t: float) -> tuple[float, int]:
    """The mean at the first look at which its interval is so narrow, relative to it, and the samples used."""
    n = first
    while n < values.size and t * math.sqrt(variance_of_mean(values[:n])) > precision * values[:n].mean():
        n = min(values.size, math.ceil(n * LOOK_GROWTH) + 1)
    return values[:n].mean(), n


@numba.njit(cache=True)
def lognormal(rng: np.random.Generator, n: int, memory: float, sigma: float) -> Floats:
    """exp of an AR(1), divided by its mean."""
    state, values = rng.standard_normal(), np.empty(n)
    for i in range(n):
        values[i] = math.exp(sigma * state - sigma * sigma / 2)
        state = memory * state + math.sqrt(1 - memory * memory) * rng.standard_normal()
    return values


def means_table(runs: int, rng: np.random.Generator) -> None:
    """The limit is the true mean: whatever is settled is a mistake."""
    print(f"\nA mean on its limit, looked at all the time: % settled below / above it, {runs} runs")
    print("| stream | plain, from 20 | 2.5 times as wide, from 20 | plain, from 200 | 2.5 times, from 200 |")
    print("|---|---|---|---|---|")
    t = estimates.student_t(CONFIDENCE, _COSINES)
    for memory, sigma in ((0.0, 0.5), (0.0, 1.0), (0.8, 0.5), (0.9, 0.5), (0.97, 0.5)):
        streams, cells = [lognormal(rng, 4000, memory, sigma) for _ in range(runs)], []
        for times, first in ((1.0, 20), (INTERVAL_TIMES, 20), (1.0, INTERVAL_FROM), (INTERVAL_TIMES, INTERVAL_FROM)):
            found = np.array([clear_of(stream, 1.0, times, first, t) for stream in streams])
            cells.append(f"{100 * (found == -1).mean():.1f} / {100 * (found == 1).mean():.1f}")
        print(f"| AR(1) {memory:g}, log-normal, sigma {sigma:g} | {' | '.join(cells)} |", flush=True)


def precision_table(runs: int, rng: np.random.Generator) -> None:
    print(f"\nMeans at the first look at which half the interval is {PRECISION:.0%} of them, {runs} runs")
    print("| stream | samples | bias, % | standard deviation, % |\n|---|---|---|---|")
    t = estimates.student_t(CONFIDENCE, _COSINES)
    for memory, sigma in ((0.0, 0.2), (0.8, 0.2), (0.9, 0.2), (0.97, 0.1)):
        found = [when_precise(lognormal(rng, 20_000, memory, sigma), PRECISION, INTERVAL_FROM, t) for _ in range(runs)]
        means, samples = np.array(found).T
        spread = f"{100 * (means.mean() - 1):+.2f} | {100 * means.std():.2f}"
        print(f"| AR(1) {memory:g}, log-normal, sigma {sigma:g} | {samples.mean():.0f} | {spread} |", flush=True)


def savings_table(runs: int, rng: np.random.Generator) -> None:
    print(f"\nRequests used, against the fixed sample with errors as small, {runs} runs; D is the floor's")
    print(
        "| SLO | D | false pass / fail, % | fixed n | p*/2 | 2 p* | 4 p* | 10 p* |\n|---|---|---|---|---|---|---|---|"
    )
    for q, inflated in ((0.9, 8), (0.9, 32), (0.9, 110), (0.95, 110), (0.99, 32)):
        share = 1 - q
        n = 6 * int(samples_to_pass(share, CONFIDENCE, inflated))
        found = {
            f: outcomes(markov(rng, runs, n, min(share * f, 0.9), inflated), share, inflated) for f in (0.5, 2, 4, 10)
        }
        false_pass, false_fail = (found[2][:, 0] == 1).mean(), (found[0.5][:, 0] == -1).mean()
        separated = [
            np.cumsum(list(markov(rng, runs, n, share * f, inflated)), axis=1, dtype=np.int32) for f in (0.5, 2)
        ]
        fixed = fixed_sample(*separated, max(false_pass, 1 / runs), max(false_fail, 1 / runs))
        used = " | ".join(f"{rulings[:, 1].mean():.0f}" for rulings in found.values())
        errors = f"{100 * false_pass:.1f} / {100 * false_fail:.1f}"
        print(f"| p{100 * q:g} | {inflated} | {errors} | {fixed or f'> {n}'} | {used} |", flush=True)


def fixed_sample(good: Ints, bad: Ints, false_pass: float, false_fail: float) -> int | None:
    """The least n at which some number of violations separates the runs at p*/2 from those at 2 p* with such errors;
    None where no n does. `good`, `bad`: violations so far by run and request."""
    for n in np.unique(np.geomspace(50, good.shape[1], 200).astype(int)):
        passing = np.quantile(bad[:, n - 1], false_pass, method="lower") - 1  # so many violations or fewer
        if (good[:, n - 1] > passing).mean() <= false_fail:
            return int(n)
    return None


PARTS: dict[str, Callable[[int, np.random.Generator], None]] = {
    "markov": markov_table,
    "queues": queue_table,
    "savings": savings_table,
    "means": means_table,
    "precision": precision_table,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    agree(np.random.default_rng(options.seed))
    for name, part in PARTS.items():
        if options.only in {None, name}:
            part(options.runs, np.random.default_rng(options.seed))


if __name__ == "__main__":
    main()
