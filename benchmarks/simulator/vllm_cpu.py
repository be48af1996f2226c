"""Does the scheduler model rank configurations of a real vLLM on the CPU?

    python -m benchmarks.simulator.vllm_cpu measure   # 16 launches, 20 minutes; needs `make vllm-env`
    python -m benchmarks.simulator.vllm_cpu again     # the first 8 once more: how far two launches of one kind agree
    python -m benchmarks.simulator.vllm_cpu rank      # reads data/vllm_cpu*.csv; needs no engine

`rank` fits the model's constants to two launches, predicts all others under the same requests and compares the orders,
for every choice of two. Beside it stand what the constants' guesses alone would give, and one knob without any model.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy.stats import spearmanr

from benchmarks.simulator.vllm_cpu_fit import CONSTANTS, Load, fit, load_of, predict
from benchmarks.simulator.vllm_cpu_grid import (
    AGAIN,
    KNOBS,
    LAUNCHES,
    LAUNCHES_AGAIN,
    METRICS,
    TABLE,
    Measured,
    measure,
    read,
    study,
)

Floats = NDArray[np.float64]

RANKED = ("output_tok_per_s", "ttft_ms.p90", "tpot_ms.p90")
TARGET = 0.7
WIDE = 8
CONCURRENCY = 16  # of the study


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """Constants fitted to the launches of `pair`, and METRICS of every launch predicted with them (a row a launch)."""

    pair: tuple[int, ...]
    constants: Floats
    predicted: Floats


def main(argv: Sequence[str]) -> int:
    runs = Path(tempfile.gettempdir()) / f"vllm-cpu-grid-{os.getpid()}"
    match argv:
        case ["measure"]:
            measure(runs, TABLE, LAUNCHES)
        case ["again"]:
            measure(runs, AGAIN, LAUNCHES_AGAIN)
        case ["rank"]:
            return rank(read(TABLE), read(AGAIN) if AGAIN.exists() else [], Console(width=120))
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


def rank(launches: Sequence[Measured], again: Sequence[Measured], console: Console) -> int:
    """Print the tables; 1 when the median Spearman of throughput misses the target."""
    load = load_of(study())
    fits = list(all_fits(launches, load))
    ruled = next(f for f in fits if f.pair == ruled_pair(launches))
    console.print(scatter_table(launches, ruled))
    console.print(constants_table(fits, ruled))
    console.print(correlation_table(launches, fits, ruled, unfitted(launches, load)))
    if again:
        console.print(agreement_table(launches, again))
    console.print(f"Spearman of measured / simulated throughput with others' cores: {disturbance(launches, ruled):.2f}")
    reached = float(np.median(correlations(launches, fits, "output_tok_per_s")))
    console.print(f"median Spearman of throughput: {reached:.2f}; target {TARGET}")
    return int(reached < TARGET)


def all_fits(launches: Sequence[Measured], load: Load) -> Iterator[Fit]:
    """One fit for every choice of two launches."""
    for pair in combinations(range(len(launches)), 2):
        constants = fit([launches[i] for i in pair], load)
        yield Fit(pair=pair, constants=constants, predicted=predictions(constants, launches, load))


def unfitted(launches: Sequence[Measured], load: Load) -> Fit:
    """The guesses that fits start from, as they are."""
    guess = np.array(list(CONSTANTS.values()))
    return Fit(pair=(), constants=guess, predicted=predictions(guess, launches, load))


def predictions(constants: Floats, launches: Sequence[Measured], load: Load) -> Floats:
    return np.array([predict(constants, launch, load) for launch in launches])


def ruled_pair(launches: Sequence[Measured]) -> tuple[int, int]:
    """The pair that one would choose beforehand: the defaults, and the fewest sequences of all (then fewest tokens)."""
    few = min(
        range(1, len(launches)),
        key=lambda i: (launches[i].knobs["max_num_seqs"], launches[i].knobs["max_num_batched_tokens"]),
    )
    return 0, few


def correlations(launches: Sequence[Measured], fits: Sequence[Fit], metric: str, among: Sequence[int] = ()) -> Floats:
    """Spearman of predicted and measured, one a fit, over the launches that it was not fitted to (of `among` only)."""
    seen, column = measured(launches, metric), METRICS.index(metric)
    return np.array(
        [spearman(f.predicted[rest, column], seen[rest]) for f in fits if (rest := others(f, launches, among))]
    )


def others(fit: Fit, launches: Sequence[Measured], among: Sequence[int] = ()) -> list[int]:
    return [i for i in among or range(len(launches)) if i not in fit.pair]


def measured(launches: Sequence[Measured], metric: str) -> Floats:
    return np.array([launch.values[metric] for launch in launches])


def spearman(one: Floats, other: Floats) -> float:
    """NaN when one of them is constant: then it ranks nothing."""
    if np.ptp(one) == 0 or np.ptp(other) == 0:
        return float("nan")
    return float(spearmanr(one, other).statistic)


def scatter_table(launches: Sequence[Measured], ruled: Fit) -> Table:
    table = Table(
        *("trial", "seqs", "tokens", "chunk", "thresh.", "cache", "block", "tok/s", "sim.", "TTFT p90", "sim.",
          "TPOT p90", "sim.", "others"),
        title="Fitted to the two launches marked *; ms; others: cores busy with something else",
    )  # fmt: skip
    for i, launch in enumerate(launches):
        pairs = [(launch.values[name], ruled.predicted[i, METRICS.index(name)]) for name in RANKED]
        cells = [f"{value:.0f}" for pair in pairs for value in pair]
        mark = "*" if i in ruled.pair else ""
        knobs = [str(launch.knobs[name]) for name in KNOBS]
        table.add_row(f"{launch.trial}{mark}", *knobs, *cells, f"{launch.other_cores:.2f}")
    return table


def constants_table(fits: Sequence[Fit], ruled: Fit) -> Table:
    table = Table(
        "constant", "guess", "that pair", "median", "least", "greatest", title="Constants, over all choices of two"
    )
    every = np.array([f.constants for f in fits])
    for i, (name, guess) in enumerate(CONSTANTS.items()):
        column = every[:, i]
        values = guess, ruled.constants[i], np.median(column), column.min(), column.max()
        table.add_row(name, *(f"{value:.3g}" for value in values))
    return table


def correlation_table(launches: Sequence[Measured], fits: Sequence[Fit], ruled: Fit, guess: Fit) -> Table:
    """Rank correlations over everything, and over wide batches only, where max_num_seqs decides less."""
    title = f"Spearman over the launches not fitted to, {len(fits)} choices of two"
    columns = "that pair", "median", "5 %", "least", f"≥ {TARGET}", "median |e|", "no fit", "one knob"
    table = Table("among", "metric", *columns, title=title)
    wide = [i for i, launch in enumerate(launches) if launch.knobs["max_num_seqs"] >= WIDE]
    for name, among in ((f"all {len(launches)}", range(len(launches))), (f"{len(wide)} with seqs ≥ {WIDE}", wide)):
        for metric in RANKED:
            found = correlations(launches, fits, metric, among)
            summary = np.nanmedian(found), np.nanquantile(found, 0.05), np.nanmin(found)
            that, alone = (correlations(launches, [f], metric, among)[0] for f in (ruled, guess))
            shares = f"{np.mean(found >= TARGET):.0%}", f"{error(launches, fits, metric, among):.0%}"
            cells = [f"{cell:.2f}" for cell in (that, *summary)]
            table.add_row(name, metric, *cells, *shares, f"{alone:.2f}", f"{one_knob(launches, metric, among):.2f}")
    return table


def one_knob(launches: Sequence[Measured], metric: str, among: Sequence[int]) -> float:
    """Spearman with the batch that max_num_seqs allows of the requests there are; the sign is given for free."""
    batch = np.array([min(launch.knobs["max_num_seqs"], CONCURRENCY) for launch in launches], dtype=float)
    return abs(spearman(batch[among], measured(launches, metric)[among]))


def disturbance(launches: Sequence[Measured], ruled: Fit) -> float:
    """Clearly below 0 when launches fall short of the model where other work kept the machine busy."""
    ratio = measured(launches, RANKED[0]) / ruled.predicted[:, METRICS.index(RANKED[0])]
    return spearman(ratio, np.array([launch.other_cores for launch in launches]))


def agreement_table(launches: Sequence[Measured], again: Sequence[Measured]) -> Table:
    """What equal launches have in common: no model can do better than the second of them."""
    table = Table(
        "metric", "Spearman", "median difference", "greatest", title=f"{len(again)} configurations launched twice"
    )
    first = [launch for launch in launches if launch.trial in {other.trial for other in again}]
    for metric in RANKED:
        one, other = measured(first, metric), measured(again, metric)
        apart = np.abs(other / one - 1)
        table.add_row(metric, f"{spearman(one, other):.2f}", f"{np.median(apart):.0%}", f"{apart.max():.0%}")
    return table


def error(launches: Sequence[Measured], fits: Sequence[Fit], metric: str, among: Sequence[int] = ()) -> float:
    """Median relative error of the predictions of all fits."""
    seen, column = measured(launches, metric), METRICS.index(metric)
    return float(
        np.median([abs(f.predicted[i, column] / seen[i] - 1) for f in fits for i in others(f, launches, among)])
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
