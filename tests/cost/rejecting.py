"""The project's simulator with an admission limit, which it lacks: those who would be refused are taken out in turn."""

from __future__ import annotations

import numpy as np

from autotune.models.config import SchedulerConfig
from autotune.models.simulation import SimResult, simulate, trace_of


def refused_ratio(
    config: SchedulerConfig, rate_rps: float, room: int, *, requests: int, prompt: int, output: int, seed: int = 1
) -> float:
    """The share of Poisson arrivals that find `room` requests unfinished.

    Exact: nobody is changed by who comes later, so the first to find no room is refused, and the rest simulated anew.
    """
    rng = np.random.default_rng(seed)
    arrival_s = np.cumsum(rng.exponential(1 / rate_rps, requests))
    outputs = rng.geometric(1 / output, requests)
    kept = np.ones(requests, dtype=bool)
    checked = 0
    while True:
        index = np.flatnonzero(kept)
        result = simulate(trace_of(np.full(len(index), prompt), outputs[index], arrival_s[index]), config)
        over = _first_over(arrival_s[index], result, room, int(np.searchsorted(index, checked)))
        if over is None:
            return 1 - float(kept.mean())
        checked = int(index[over])
        kept[checked] = False


def _first_over(arrival_s: np.ndarray, result: SimResult, room: int, begin: int) -> int | None:
    finish_s = result.finish_s
    for i in range(max(begin, room), len(arrival_s)):
        if np.count_nonzero(finish_s[:i] > arrival_s[i]) >= room:
            return i
    return None
