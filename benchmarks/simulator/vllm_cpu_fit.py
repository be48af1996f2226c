"""The scheduler model with a CPU in the place of its GPU: six constants, fitted to launches of a real vLLM.

A maximum a posteriori fit: each constant is log-normal around a guess, and the figures of the launches fitted (METRICS)
are taken to be right within NOISE. So two launches are enough to fit by, and a constant of which they say nothing stays
where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from autotune.load import build_level
from autotune.models.config import SchedulerConfig, from_vllm_args
from autotune.models.shapes import GpuSpec, shape_of
from autotune.models.simulation import SimResult, Trace, simulate, trace_of
from autotune.models.steptime import HostCosts
from autotune.records.spec import StudySpec
from autotune.records.trial import LevelPlan
from autotune.trial.plans import level_seed, longest_request
from autotune.trial.twin_of import CPU
from benchmarks.simulator.vllm_cpu_grid import Measured

Floats = NDArray[np.float64]

CONSTANTS = {
    "flops": 100e9,  # of one or two cores with AVX-512, bf16
    "bandwidth": 10e9,  # bytes a second
    "step_s": 5e-3,  # of the host, whatever runs: scheduling, and the trips between two processes
    "per_seq_s": 0.3e-3,  # of the host, a sequence and step
    "api_request_s": 2e-3,
    "api_token_s": 0.2e-3,
}
"""Where the fit starts: round guesses after a look at one trial launch, each right within a factor of about three."""

SPREAD = 1.0  # standard deviation of ln(constant)
LARGEST = 3.0  # of |ln(constant / guess)|
STEP, MOST_STEPS = 0.05, 30
NOISE = 0.1  # of a figure of one launch: equal launches differ by 6 % (TTFT: 15 %), some by 28 %
REQUESTS = 1500  # more than any of these engines answers in a level
MODEL = "autotune/tiny"  # the shape that scripts/make_tiny_model.py writes
AMPLE_BLOCKS = 4096  # the KV cache never limited: 1 GiB holds 174,720 tokens, 16 requests take 3,072


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The level that every launch was measured under, request by request."""

    plan: LevelPlan
    trace: Trace
    max_model_len: int


def load_of(spec: StudySpec) -> Load:
    """The level of a study with closed-loop load; the same lengths and prefixes that its launches met."""
    plan = build_level(spec.objective.workload, spec.objective.load, seed=level_seed(spec.seed, 0))
    requests = plan.requests[:REQUESTS]
    longest = longest_request(spec.objective)
    return Load(
        plan=plan,
        trace=trace_of(
            [r.prompt_tokens or 1 for r in requests],
            [r.output_tokens for r in requests],
            0.0,
            [r.prefix_group for r in requests],
            [r.prefix_tokens for r in requests],
        ),
        max_model_len=(longest.prompt_tokens or 1) + longest.output_tokens,
    )


def cpu(flops: float, bandwidth: float) -> GpuSpec:
    """A machine whose peaks are what it reaches; what a layer and a token cost beyond that is the host's."""
    return replace(CPU, bf16_flops=flops, fp8_flops=flops, bandwidth=bandwidth)


def config_of(knobs: dict[str, int], gpu: GpuSpec, max_model_len: int) -> SchedulerConfig:
    """The scheduler of a launch; vLLM's CPU backend schedules synchronously."""
    shape = shape_of(MODEL)
    assert shape is not None
    args = {**knobs, "async_scheduling": False, "enforce_eager": True, "max_model_len": max_model_len}
    return from_vllm_args(args, shape, gpu)


def predict(constants: Floats, launch: Measured, load: Load) -> Floats:
    """METRICS of a launch, in virtual time under the load that it was measured under."""
    flops, bandwidth, step_s, per_seq_s, api_request_s, api_token_s = constants.tolist()
    host = HostCosts(
        step_s=step_s,
        per_seq_s=per_seq_s,
        launch_per_layer_s=0.0,
        api_latency_s=0.0,
        api_request_s=api_request_s,
        api_prompt_token_s=0.0,
        api_token_s=api_token_s,
        api_chunk_s=0.0,
    )
    config = config_of(dict(launch.knobs), cpu(flops, bandwidth), load.max_model_len)
    plan = load.plan
    window_end_s = plan.warmup_s + plan.duration_s
    result = simulate(
        load.trace,
        config,
        concurrency=plan.concurrency,
        last_start_s=window_end_s,
        end_s=window_end_s + plan.drain_s,
        keep_tokens=True,
        blocks=AMPLE_BLOCKS,
        host=host,
    )
    return figures(result, plan.warmup_s, window_end_s)


def figures(result: SimResult, begin_s: float, end_s: float) -> Floats:
    """METRICS as the measure stage defines them: tokens that arrived in the window, latencies of those sent in it."""
    arrivals = np.concatenate(result.token_times())
    rate = np.count_nonzero((arrivals >= begin_s) & (arrivals < end_s)) / (end_s - begin_s)
    sent = result.sent_s[: result.issued]
    inside = (sent >= begin_s) & (sent < end_s) & np.isfinite(result.finish_s[: result.issued])
    latencies = [
        1e3 * np.quantile(values[: result.issued][inside], q, method="inverted_cdf")
        for values in (result.ttft_s, result.tpot_s)
        for q in (0.5, 0.9)
    ]
    return np.array([rate, *latencies])


def fit(launches: Sequence[Measured], load: Load) -> Floats:
    """The constants that explain `launches` best."""
    guess = np.array(list(CONSTANTS.values()))
    seen = np.array([list(launch.values.values()) for launch in launches])

    def residuals(z: Floats) -> Floats:
        told = np.array([predict(guess * np.exp(z), launch, load) for launch in launches])
        return np.concatenate([(np.log(told / seen) / NOISE).ravel(), z / SPREAD])

    def slopes(z: Floats) -> Floats:
        """Forward differences over STEP: a simulation jumps where a request more or less fits a step."""
        here = residuals(z)
        moved = z + STEP * np.eye(len(z))
        return np.column_stack([(residuals(each) - here) / STEP for each in moved])

    found = least_squares(
        residuals, np.zeros(len(guess)), jac=slopes, bounds=(-LARGEST, LARGEST), loss="soft_l1", max_nfev=MOST_STEPS
    )
    return np.asarray(guess * np.exp(found.x))
