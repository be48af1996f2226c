"""How fast the compiled scheduler is: steps a second on one core, and a whole capacity search."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from autotune.models.capacity import capacity
from autotune.models.config import from_vllm_args
from autotune.models.simulation import Trace, simulate, trace_of
from benchmarks.simulator.latency import known

REPEATS = 5
LOADS_RPS = (5.0, 15.0, 30.0, 40.0)  # idle, usual, near capacity, beyond it
REQUESTS = 2000
SEARCH_REQUESTS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    rps: float
    steps: int
    tokens_per_step: float
    steps_per_s: float


def chat(count: int, rps: float) -> Trace:
    rng = np.random.default_rng(1)
    return trace_of(
        np.clip(rng.lognormal(np.log(600), 0.9, count), 300, 6000).astype(int),
        np.clip(rng.lognormal(np.log(200), 0.8, count), 8, 1500).astype(int),
        np.cumsum(rng.exponential(1 / rps, count)),
        rng.integers(0, 4, count),
        256,
    )


def best_s(run: Callable[[], object]) -> float:
    """The shortest of several runs: other work on the machine only ever adds."""
    times = []
    for _ in range(REPEATS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def speeds() -> Iterator[Speed]:
    gpu, shape = known("h100", "meta-llama/Llama-3.1-8B")
    config = from_vllm_args({"max_model_len": 8192}, shape, gpu)
    for rps in LOADS_RPS:
        trace = chat(REQUESTS, rps)
        result = simulate(trace, config)
        seconds = best_s(lambda t=trace: simulate(t, config))  # type: ignore[misc]
        yield Speed(
            rps=rps,
            steps=result.steps,
            tokens_per_step=result.produced_tokens / result.steps,
            steps_per_s=result.steps / seconds,
        )


def search() -> tuple[float, float, int]:
    """(milliseconds, requests a second found, simulations) of one capacity search."""
    gpu, shape = known("h100", "meta-llama/Llama-3.1-8B")
    config = from_vllm_args({"max_model_len": 8192}, shape, gpu)
    trace = chat(SEARCH_REQUESTS, 1.0)

    def run() -> object:
        return capacity(trace, config, ttft_s=0.5, tpot_s=0.05, low_rps=1.0, high_rps=100.0)

    found = capacity(trace, config, ttft_s=0.5, tpot_s=0.05, low_rps=1.0, high_rps=100.0)
    return 1e3 * best_s(run), found.rps, found.simulations
