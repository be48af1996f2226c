"""The scheduler one step at a time, against what can be worked out by hand."""

from __future__ import annotations

import pytest

from autotune.models import kernel as k
from autotune.models.scheduler import Scheduler, Step
from autotune.models.simulation import simulate, trace_of
from autotune.models.steptime import costs_of, limits_of
from tests.models.setups import config


def steps(scheduler: Scheduler) -> list[Step]:
    made = []
    while (step := scheduler.step()) is not None:
        made.append(step)
    return made


def test_a_lone_requests_first_token_takes_the_steps_of_its_prompt() -> None:
    cfg = config(max_num_batched_tokens=128, max_num_seqs=8)
    limits, costs = limits_of(cfg, 100), costs_of(cfg)
    chunks = [(128, 0), (128, 128), (44, 256)]
    expected = sum(k.step_time(limits, costs, k.Work(n, n * (past + n / 2), 0, 1, 0)) for n, past in chunks)
    scheduler = Scheduler(cfg)
    scheduler.add(300, 3)

    made = steps(scheduler)

    assert [step.token_ids for step in made] == [(), (), (0,), (0,), (0,)]
    assert sum(step.duration_s for step in made[:3]) == pytest.approx(expected)
    api_s = costs.api_latency + costs.api_per_request + 300 * costs.api_per_prompt_token + costs.api_per_token
    result = simulate(trace_of([300], 3), cfg)
    assert result.ttft_s[0] == pytest.approx(expected + api_s)


def test_decode_steps_take_what_their_context_costs() -> None:
    cfg = config()
    limits, costs = limits_of(cfg, 100), costs_of(cfg)
    scheduler = Scheduler(cfg)
    scheduler.add(100, 3)

    made = steps(scheduler)

    for step, context in zip(made[1:], (101, 102), strict=True):
        assert step.duration_s == pytest.approx(k.step_time(limits, costs, k.Work(1, 0.0, context, 1, 1)))


def test_the_token_budget_is_shared_decodes_first() -> None:
    scheduler = Scheduler(config(max_num_batched_tokens=64, max_num_seqs=8, async_scheduling=False))
    first = scheduler.add(10, 50)
    scheduler.step()
    scheduler.add(100, 1)

    step = scheduler.step()

    assert step is not None
    assert step.token_ids == (first,)
    assert step.prefill_tokens == 63


def test_a_long_prompt_leaves_room_beside_its_threshold() -> None:
    scheduler = Scheduler(config(max_num_batched_tokens=256, max_num_seqs=8, long_prefill_token_threshold=100))
    scheduler.add(500, 1)
    short = scheduler.add(20, 1)

    step = scheduler.step()

    assert step is not None
    assert step.finished_ids == (short,)
    assert step.prefill_tokens == 120


def test_without_chunks_a_prompt_waits_for_a_step_of_its_own() -> None:
    cfg = config(enable_chunked_prefill=False, max_num_batched_tokens=1024, max_num_seqs=8)
    scheduler = Scheduler(cfg)
    for _ in range(2):
        scheduler.add(600, 1)

    assert [step.prefill_tokens for step in steps(scheduler)] == [600, 600]


def test_async_scheduling_sees_a_newcomer_one_step_later() -> None:
    seen = []
    for asynchronous in (False, True):
        scheduler = Scheduler(config(async_scheduling=asynchronous))
        scheduler.add(10, 20)
        scheduler.step()
        newcomer = scheduler.add(10, 1)
        seen.append(next(i for i, step in enumerate(steps(scheduler)) if newcomer in step.token_ids))

    assert seen == [0, 1]


def test_the_newest_is_preempted_and_computes_again() -> None:
    scheduler = Scheduler(config(enable_prefix_caching=False, scheduler_reserve_full_isl=False), blocks=8)
    old, new = scheduler.add(60, 60), scheduler.add(60, 60)

    made = steps(scheduler)

    assert [step.preempted_ids for step in made if step.preempted_ids] == [(new,)]
    assert sum(step.token_ids.count(old) for step in made) == 60
    assert sum(step.token_ids.count(new) for step in made) == 60
    assert scheduler.preemptions_total == 1


def test_an_abort_frees_blocks_and_queue() -> None:
    scheduler = Scheduler(config(max_num_seqs=1))
    running, waiting = scheduler.add(100, 50), scheduler.add(100, 50)
    scheduler.step()
    assert (scheduler.running, scheduler.waiting, scheduler.free_blocks < scheduler.total_blocks) == (1, 1, True)

    for request in (running, waiting, running):
        scheduler.abort(request)

    assert (scheduler.running, scheduler.waiting, scheduler.free_blocks) == (0, 0, scheduler.total_blocks)
    assert scheduler.step() is None


def test_the_kv_cache_fills_block_by_block() -> None:
    scheduler = Scheduler(config(), blocks=100)
    scheduler.add(16, 20)

    used = []
    while scheduler.step() is not None:
        used.append(round(scheduler.kv_usage_ratio * 100))

    # 16 tokens of prompt fill a block; output token k is computed in step k + 1, the last one never.
    assert used == [1] + [2] * 16 + [3] * 2 + [0]


def test_a_preempted_request_finds_its_own_blocks_again() -> None:
    cached = Scheduler(config(scheduler_reserve_full_isl=False), blocks=12)
    plain = Scheduler(config(scheduler_reserve_full_isl=False, enable_prefix_caching=False), blocks=12)
    for scheduler in (cached, plain):
        for _ in range(2):
            scheduler.add(80, 60)

    again = [sum(step.prefill_tokens for step in steps(scheduler)) for scheduler in (cached, plain)]

    assert cached.preemptions_total > 0
    assert again[0] < again[1]


@pytest.mark.parametrize(("prompt", "output"), [(0, 5), (5, 0), (1000, 100)])
def test_impossible_requests_are_refused(prompt: int, output: int) -> None:
    with pytest.raises(ValueError, match="token"):
        Scheduler(config()).add(prompt, output)
