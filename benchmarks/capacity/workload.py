"""Requests by the thousand, and the capacity that very long runs show."""

from __future__ import annotations

import numpy as np

from autotune.models.stationary import root
from autotune.records.spec import LogNormalLength, WorkloadSpec
from benchmarks.capacity.engine import Floats, Ints, serve
from benchmarks.capacity.scenarios import Scenario

LONG = 300_000  # requests: bursts leave 1 % of rate uncertain
ALLOWED = 0.01  # of a p99


def draw(workload: WorkloadSpec, count: int, seed: int) -> tuple[Floats, Ints, Ints]:
    """Arrivals at one a second on average, prompts and answers in tokens."""
    rng = np.random.default_rng(seed)
    at_s = np.cumsum(rng.exponential(size=count))
    return at_s, _lengths(workload.input_tokens, count, rng), _lengths(workload.output_tokens, count, rng)


def _lengths(length: object, count: int, rng: np.random.Generator) -> Ints:
    assert isinstance(length, LogNormalLength)
    drawn = rng.lognormal(np.log(length.median), length.sigma, count)
    return np.clip(np.round(drawn), length.low, length.high).astype(np.int64)


def true_capacity(scenario: Scenario, count: int = LONG, seed: int = 7) -> float:
    """The rate at which a hundredth of very many requests exceeds a limit."""
    at_s, prompt, output = draw(scenario.workload, count, seed)
    warm = count // 50

    def strain(rate: float) -> float:
        served = serve(scenario.physics, at_s / rate, prompt, output, seed=seed, end_s=float(at_s[-1]) / rate)
        ttft_s = np.where(np.isnan(served.first_s), np.inf, served.first_s) - served.sent_s
        several = ~np.isnan(served.last_s) & (output > 1)
        several[:warm] = False
        tpot_s = (served.last_s - served.first_s)[several] / (output[several] - 1)
        late, slow = np.mean(ttft_s[warm:] > scenario.ttft_ms / 1e3), np.mean(tpot_s > scenario.tpot_ms / 1e3)
        return float(max(late, slow) + 1e-6) / ALLOWED

    return root(strain, 20.0)
