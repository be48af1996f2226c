"""Laws that the scheduler obeys whatever the configuration and the load."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.models.capacity import capacity
from autotune.models.config import SchedulerConfig
from autotune.models.simulation import Limit, SimResult, Trace, simulate, trace_of
from tests.models.setups import chat, config, configs, traces

FEW = settings(max_examples=60, deadline=None)
LEAST_TOKENS = 1024  # that the KV cache must hold: one longest request
SCARCE = st.sampled_from([1, 2, 5])  # KV cache in longest requests: little room forces preemptions


def run(trace: Trace, cfg: SchedulerConfig, room: int, **how: Any) -> SimResult:
    return simulate(trace, cfg, blocks=room * LEAST_TOKENS // cfg.block_size, keep_tokens=True, **how)


@FEW
@given(traces(), configs(), SCARCE, st.sampled_from([None, 1, 4]))
def test_every_request_gets_exactly_its_tokens_in_order_of_time(
    trace: Trace, cfg: SchedulerConfig, room: int, concurrency: int | None
) -> None:
    result = run(trace, cfg, room, concurrency=concurrency, noise_ratio=0.05)

    assert result.produced_tokens == trace.output_tokens.sum()
    for i, times in enumerate(result.token_times()):
        assert len(times) == trace.output_tokens[i]
        assert np.all(np.diff(times) > 0)
        assert times[0] == result.first_s[i] > result.sent_s[i]
        assert times[-1] == result.finish_s[i]


@FEW
@given(traces(families=2, least_tokens=200), configs(), st.just(1))
def test_prefixes_of_unequal_length_never_keep_out_a_request_that_fits_alone(
    trace: Trace, cfg: SchedulerConfig, room: int
) -> None:
    assert run(trace, cfg, room).produced_tokens == trace.output_tokens.sum()


@FEW
@given(traces(), configs(), SCARCE)
def test_no_block_is_lost_or_made(trace: Trace, cfg: SchedulerConfig, room: int) -> None:
    result = run(trace, cfg, room)

    assert result.free_blocks == room * LEAST_TOKENS // cfg.block_size
    assert 0 < result.kv_peak_ratio <= 1
    assert 0 <= result.hit_tokens <= result.queried_tokens


@settings(max_examples=15, deadline=None)
@given(traces(), configs(), SCARCE, st.sampled_from([None, 3]))
def test_compiled_and_plain_python_agree(
    trace: Trace, cfg: SchedulerConfig, room: int, concurrency: int | None
) -> None:
    compiled, plain = (
        run(trace, cfg, room, concurrency=concurrency, noise_ratio=0.05, compiled=choice) for choice in (True, False)
    )

    np.testing.assert_allclose(compiled.finish_s, plain.finish_s, rtol=1e-12)
    assert (compiled.steps, compiled.preemptions, compiled.hit_tokens) == (
        plain.steps,
        plain.preemptions,
        plain.hit_tokens,
    )


def test_the_same_seed_gives_the_same_trace_and_another_does_not() -> None:
    first, again, other = (simulate(chat(), config(), noise_ratio=0.03, seed=seed) for seed in (7, 7, 8))

    assert np.array_equal(first.finish_s, again.finish_s)
    assert not np.array_equal(first.finish_s, other.finish_s)


@pytest.mark.parametrize("blocks", [100, 200, 400, 800, 1600])
def test_more_memory_never_lowers_capacity_by_more_than_noise(blocks: int) -> None:
    """The limit is one on waiting: with a tight TPOT limit more memory may hurt, since vLLM admits whatever fits."""
    low, high = (
        capacity(chat(1000), config(), ttft_s=1.0, tpot_s=1.0, blocks=room).rps for room in (blocks, 2 * blocks)
    )

    assert high >= 0.95 * low > 0


def test_a_faster_gpu_holds_more() -> None:
    slow, fast = (capacity(chat(300), config(), ttft_s=1.0, tpot_s=0.02, speed=speed).rps for speed in (1.0, 1.5))

    assert fast > 1.2 * slow


def test_scarce_blocks_preempt_and_still_serve_everyone() -> None:
    result = simulate(chat(), config(), blocks=150)

    assert result.preemptions > 0
    assert np.isfinite(result.finish_s).all()


def test_no_evict_never_preempts_where_eviction_would() -> None:
    result = simulate(chat(), replace(config(), no_evict=True), blocks=150)

    assert result.preemptions == 0
    assert np.isfinite(result.finish_s).all()


def test_a_shared_prefix_is_computed_once_while_it_stays_cached() -> None:
    result = simulate(trace_of([200] * 50, 4, np.arange(50) * 1.0, 0, 160), config())

    assert result.hit_tokens == 49 * 160


def test_a_prefix_is_evicted_by_what_came_since() -> None:
    others = 20  # of 300 prompt tokens each: more than the 64 blocks hold
    arrival = np.arange(others + 2) * 1.0
    groups = [0, *[-1] * others, 0]
    prompts = [200, *[300] * others, 200]

    result = simulate(trace_of(prompts, 4, arrival, groups, 160), config(), blocks=64)

    assert result.cached_tokens[-1] == 0


@pytest.mark.parametrize(("asked", "cached"), [(0, 160), (1, 0)])
def test_the_prefix_used_last_is_evicted_last(asked: int, cached: int) -> None:
    """Groups 0, 1, 0 again, then a stranger that needs 53 of 64 blocks: it overwrites group 1's, not group 0's."""
    groups = [0, 1, 0, -1, asked]
    prompts = [161, 161, 161, 847, 161]

    result = simulate(trace_of(prompts, 1, np.arange(5) * 1.0, groups, 160), config(), blocks=64)

    assert result.cached_tokens[-1] == cached


def test_async_scheduling_costs_a_newcomer_one_step() -> None:
    waits = []
    for asynchronous in (False, True):
        cfg = config(async_scheduling=asynchronous)
        ends = simulate(trace_of([100], 50), cfg, keep_tokens=True).token_times()[0]
        step_s = ends[11] - ends[10]
        # The API server takes 2.5 ms, so this one reaches the engine in the middle of a step.
        arrival = (ends[10] + ends[11]) / 2 - 2.5e-3
        waits.append(simulate(trace_of([100, 10], 50, [0.0, arrival]), cfg).ttft_s[1])

    assert waits[1] - waits[0] > 0.5 * step_s


def test_a_request_that_can_never_fit_is_reported_as_stuck() -> None:
    result = simulate(trace_of([500], 10), config(), blocks=4)

    assert result.stuck
    assert np.isnan(result.first_s[0])


def test_a_hopeless_level_ends_early() -> None:
    whole = simulate(chat(400, rps=500), config(max_num_seqs=16))
    cut = simulate(chat(400, rps=500), config(max_num_seqs=16), limit=Limit(ttft_s=0.2, allowed=4))

    assert cut.missed > 4
    assert cut.steps < whole.steps / 2


def test_too_long_a_request_is_refused() -> None:
    with pytest.raises(ValueError, match="exceeds max_model_len"):
        simulate(trace_of([1000], 100), config())


def test_the_capacity_found_holds_and_a_third_more_does_not() -> None:
    trace, limit = chat(500), Limit(ttft_s=0.3, tpot_s=0.02, allowed=5)
    found = capacity(trace, config(), ttft_s=limit.ttft_s, tpot_s=limit.tpot_s).rps
    own = len(trace.prompt_tokens) / trace.arrival_s[-1]

    assert simulate(trace.at_rate(found / own), config(), limit=limit).missed <= limit.allowed
    assert simulate(trace.at_rate(1.33 * found / own), config(), limit=limit).missed > limit.allowed


def test_the_step_by_step_scheduler_needs_no_compiler() -> None:
    program = "import sys, autotune.models.scheduler; print('numba' in sys.modules or 'numpy' in sys.modules)"

    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert answer.stdout.strip() == "False"
