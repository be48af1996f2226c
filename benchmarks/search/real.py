"""The real landscape: a table of every configuration of a small grid, measured on a real vLLM, is replayed.

A launch gives one of the configuration's repeats, drawn by the study's seed; its truth is their mean.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from statistics import fmean, quantiles

import numpy as np

from autotune.models.startup import IMPORT_S
from autotune.records.spec import Args
from autotune.records.trial import Candidate, Outcome
from benchmarks.search.evaluation import Died, Measured
from benchmarks.search.landscapes import REAL, Landscape, landscape
from benchmarks.search.protocol import Evaluator
from benchmarks.search.records import Spent
from benchmarks.search.truth import seed_of

TABLE = Path(__file__).parent / "data" / "vllm_cpu.csv"
KNOBS: Mapping[str, object] = {
    "max_num_seqs": 32,
    "max_num_batched_tokens": 768,
    "enable_chunked_prefill": True,
    "enable_prefix_caching": True,
    "block_size": 128,
}
"""The grid's parameters, and which of its values stands for vLLM's default on a CPU where one is left out."""

METRICS = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p90", "tpot_ms.p50", "tpot_ms.p90")
BINDING = 0.6  # share of configurations within each limit
LEVEL_REQUESTS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Repeats of one configuration: METRICS each; none where it broke."""

    repeats: tuple[Mapping[str, float], ...]
    startup_s: float


def real_landscape(table: Path = TABLE) -> Landscape:
    """Return the landscape, its limits taken from the table. Raises FileNotFoundError before it was measured."""
    hill = landscape(REAL)
    rows = rows_of(table)
    objective = hill.spec.objective
    slos = tuple(replace(slo, limit=_limit(rows.values(), slo.metric)) for slo in objective.slos)
    return replace(hill, spec=replace(hill.spec, objective=replace(objective, slos=slos)))


def _limit(rows: Iterable[Row], metric: str) -> float:
    means = [_mean(row, metric) for row in rows if row.repeats]
    return quantiles(means, n=100)[round(100 * BINDING) - 1]


def _mean(row: Row, metric: str) -> float:
    return fmean(repeat[metric] for repeat in row.repeats)


@cache
def rows_of(table: Path) -> Mapping[str, Row]:
    """Return the table by configuration."""
    with table.open(encoding="utf-8") as file:
        lines = list(csv.DictReader(line for line in file if not line.startswith("#")))
    found: dict[str, list[dict[str, str]]] = {}
    for line in lines:
        found.setdefault(_key(line), []).append(line)
    return {key: _row(own) for key, own in found.items()}


def _row(lines: Sequence[Mapping[str, str]]) -> Row:
    ran = [line for line in lines if line["output_tok_per_s"]]
    repeats = tuple({name: float(line[name]) for name in METRICS} for line in ran)
    return Row(repeats=repeats, startup_s=float(ran[0]["startup_s"]) if ran else 0.0)


def _key(values: Mapping[str, object]) -> str:
    return "|".join(str(values.get(name, default)) for name, default in KNOBS.items())


def evaluator_of(table: Path = TABLE) -> Evaluator:
    """Return where the protocol gets the figures of the real landscape."""
    rows = rows_of(table)

    def measure(hill: Landscape, args: Args, seed: int) -> Measured:
        row = rows[_key(args)]
        picked = int(np.random.default_rng(seed_of(seed, _key(args))).integers(max(1, len(row.repeats))))
        return _measured(hill, row.repeats[picked] if row.repeats else None)

    def truth(hill: Landscape, args: Args) -> Measured:
        row = rows[_key(args)]
        return _measured(hill, {name: _mean(row, name) for name in METRICS} if row.repeats else None)

    def spent(hill: Landscape, candidate: Candidate, found: Measured, _: set[object]) -> Spent:
        load = hill.spec.objective.load
        startup_s = IMPORT_S + rows[_key(candidate.args)].startup_s
        return Spent(startup_s=startup_s, load_s=0.0 if found.died else load.warmup_s + load.duration_s)

    return Evaluator(measure=measure, truth=truth, spent=spent)


def _measured(hill: Landscape, values: Mapping[str, float] | None) -> Measured:
    objective = hill.spec.objective
    if values is None:
        return Measured(outcome=Outcome.LAUNCH_FAILED, died=Died.START, line="it broke when it was measured")
    excess = {slo.metric: (values[slo.metric] - slo.limit) / slo.limit for slo in objective.slos}
    return Measured(
        outcome=Outcome.SLO_MISS if any(x > 0 for x in excess.values()) else Outcome.OK,
        value=values[objective.metric],
        excess=excess,
        rate=float(objective.load.concurrency or 0),
        requests=LEVEL_REQUESTS,
        values=values,
    )


def optimum(table: Path = TABLE) -> float:
    """Return the best true value of the table that holds every limit."""
    hill = real_landscape(table)
    limits = {slo.metric: slo.limit for slo in hill.spec.objective.slos}
    feasible = [
        _mean(row, hill.spec.objective.metric)
        for row in rows_of(table).values()
        if row.repeats and all(_mean(row, metric) <= limit for metric, limit in limits.items())
    ]
    return max(feasible)
