"""The highest rate at which a configuration holds latency limits on one trace, by bisection on the simulation."""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log

from autotune.models.config import SchedulerConfig
from autotune.models.simulation import Limit, Trace, simulate


@dataclass(frozen=True, slots=True, kw_only=True)
class Capacity:
    """Requests a second that hold the limits; 0 when the lowest does not, close to the highest when all do."""

    rps: float
    simulations: int
    steps: int


def capacity(
    trace: Trace,
    config: SchedulerConfig,
    *,
    ttft_s: float,
    tpot_s: float,
    miss_ratio: float = 0.01,
    low_rps: float = 0.1,
    high_rps: float = 200.0,
    probes: int = 8,
    blocks: int | None = None,
    speed: float = 1.0,
) -> Capacity:
    """Search between `low_rps` and `high_rps` on a logarithmic scale; each probe halves what is left.

    The requests of `trace` stay the same, only their gaps are rescaled, so that two configurations meet one trace. A
    simulation ends as soon as more than `miss_ratio` of them are certain to miss a limit.
    """
    count = len(trace.prompt_tokens)
    own_rps = count / float(trace.arrival_s[-1])
    limit = Limit(ttft_s=ttft_s, tpot_s=tpot_s, allowed=int(miss_ratio * count))
    simulations = steps = 0

    def holds(rps: float) -> bool:
        nonlocal simulations, steps
        result = simulate(trace.at_rate(rps / own_rps), config, limit=limit, blocks=blocks, speed=speed)
        simulations, steps = simulations + 1, steps + result.steps
        return result.missed <= limit.allowed and not result.stuck

    low, high = log(low_rps), log(high_rps)
    for _ in range(probes):
        middle = (low + high) / 2
        low, high = (middle, high) if holds(exp(middle)) else (low, middle)
    # The lowest rate takes the most steps, so it is only tried when nothing above it held.
    held = low > log(low_rps) or holds(low_rps)
    return Capacity(rps=exp(low) if held else 0.0, simulations=simulations, steps=steps)
