"""Plans of levels: lengths, prompts, arrivals, seeds."""

from __future__ import annotations

from itertools import islice, pairwise

import pytest
from scipy import stats

from autotune.errors import InputError
from autotune.load import build_level
from autotune.records.spec import (
    FixedLength,
    Length,
    LoadSpec,
    LogNormalLength,
    PrefixSpec,
    UniformLength,
    WorkloadSpec,
)
from autotune.records.trial import LevelPlan, RequestPlan

CLOSED = LoadSpec(concurrency=4)


def workload(
    prompt: Length | None = None, output: Length | None = None, prefix: PrefixSpec | None = None
) -> WorkloadSpec:
    return WorkloadSpec(
        input_tokens=prompt or FixedLength(tokens=64), output_tokens=output or FixedLength(tokens=8), prefix=prefix
    )


def first(plan: LevelPlan, count: int) -> list[RequestPlan]:
    return list(islice(plan.requests, count))


def ids(request: RequestPlan) -> tuple[int, ...]:
    assert request.prompt_ids is not None
    return request.prompt_ids


def arrivals(plan: LevelPlan) -> list[float]:
    return [request.at_s for request in plan.requests if request.at_s is not None]


def test_equal_seeds_give_equal_requests_and_others_do_not() -> None:
    spec = workload(UniformLength(low=10, high=90))
    one, same, other = (first(build_level(spec, CLOSED, seed=seed), 20) for seed in (7, 7, 8))
    assert one == same
    assert not {ids(request) for request in one} & {ids(request) for request in other}


def test_a_request_is_the_same_whenever_it_is_asked_for() -> None:
    requests = build_level(workload(UniformLength(low=10, high=90)), CLOSED, seed=1).requests
    assert requests[1_000_000] == requests[1_000_000]
    assert requests[3:5] == (requests[3], requests[4])
    assert [request.index for request in requests[3:5]] == [3, 4]


def test_prompts_have_exact_lengths_and_share_nothing() -> None:
    plan = build_level(workload(UniformLength(low=40, high=80), UniformLength(low=3, high=9)), CLOSED, seed=1)
    requests = first(plan, 300)
    assert all(len(ids(request)) == request.prompt_tokens for request in requests)
    assert {request.prompt_tokens for request in requests} == set(range(40, 81))
    assert {request.output_tokens for request in requests} == set(range(3, 10))
    # A prefix cache shares whole blocks from the first token on, of 16 tokens or more.
    assert len({ids(request)[:16] for request in requests}) == len(requests)


@pytest.mark.parametrize(("vocab_size", "low", "high"), [(None, 100, 8000), (512, 100, 412), (128_256, 2565, 125_691)])
def test_prompt_ids_avoid_both_ends_of_the_vocabulary(vocab_size: int | None, low: int, high: int) -> None:
    plan = build_level(workload(FixedLength(tokens=20_000)), CLOSED, seed=1, vocab_size=vocab_size)
    seen = ids(plan.requests[0])
    assert low <= min(seen) <= low + (high - low) // 100
    assert high - (high - low) // 100 <= max(seen) < high


def test_log_normal_lengths_have_their_median_and_bounds() -> None:
    length = LogNormalLength(median=200, sigma=0.8, low=50, high=900)
    drawn = [len(ids(request)) for request in first(build_level(workload(length), CLOSED, seed=1), 2000)]
    assert min(drawn) == 50
    assert max(drawn) == 900
    inside = stats.binom(len(drawn), 0.5).interval(0.999)
    assert inside[0] <= sum(tokens <= 200 for tokens in drawn) <= inside[1]


def test_a_log_normal_of_any_width_stays_inside_its_bounds() -> None:
    length = LogNormalLength(median=200, sigma=2000.0, low=50, high=900)
    assert {len(ids(request)) for request in first(build_level(workload(length), CLOSED, seed=1), 50)} == {50, 900}


def test_a_prefix_is_shared_inside_its_group_and_level_only() -> None:
    spec = workload(FixedLength(tokens=48), prefix=PrefixSpec(tokens=32, groups=3))
    one, other = (first(build_level(spec, CLOSED, seed=seed), 60) for seed in (1, 2))
    heads = {(request.prefix_group, ids(request)[:32]) for request in one}
    assert {group for group, _ in heads} == {0, 1, 2}
    assert len({head for _, head in heads}) == len(heads) == 3
    assert not {head for _, head in heads} & {ids(request)[:32] for request in other}
    assert len({ids(request)[32:] for request in one}) == len(one)
    assert all(request.prefix_tokens == 32 for request in one)


def test_poisson_gaps_are_exponential_and_independent() -> None:
    plan = build_level(workload(), LoadSpec(poisson_rps=50.0, duration_s=100.0, warmup_s=5.0), seed=3)
    times = arrivals(plan)
    gaps = [later - earlier for earlier, later in pairwise([0.0, *times])]
    assert stats.kstest(gaps, stats.expon(scale=1 / 50).cdf).pvalue > 0.01
    assert abs(stats.pearsonr(gaps[:-1], gaps[1:])[0]) < 3 / len(gaps) ** 0.5
    assert times[-1] < 105.0
    assert stats.poisson(50 * 105).cdf(len(times)) == pytest.approx(0.5, abs=0.495)


def test_another_rate_replays_the_same_trace() -> None:
    slow, fast = (
        build_level(workload(UniformLength(low=1, high=99)), LoadSpec(poisson_rps=rate, duration_s=60.0), seed=3)
        for rate in (2.0, 8.0)
    )
    count = len(slow.requests)
    assert arrivals(slow) == pytest.approx([at_s * 4 for at_s in arrivals(fast)[:count]])
    assert [ids(request) for request in slow.requests] == [ids(request) for request in fast.requests[:count]]


def test_max_requests_ends_a_closed_loop() -> None:
    assert len(build_level(workload(), LoadSpec(concurrency=2, max_requests=9), seed=1).requests) == 9


def test_max_requests_shortens_an_open_loop_and_its_window() -> None:
    load = LoadSpec(poisson_rps=20.0, duration_s=60.0, warmup_s=1.0)
    whole = build_level(workload(), load, seed=1)
    cut = build_level(workload(), LoadSpec(poisson_rps=20.0, duration_s=60.0, warmup_s=1.0, max_requests=100), seed=1)
    assert arrivals(cut) == arrivals(whole)[:100]
    assert cut.warmup_s + cut.duration_s == pytest.approx(arrivals(whole)[100])


def test_a_closed_loop_has_requests_without_end() -> None:
    requests = build_level(workload(), LoadSpec(concurrency=1), seed=1).requests
    assert requests[10**9].index == 10**9
    assert requests[0].at_s is None


@pytest.mark.parametrize(
    ("spec", "load", "message"),
    [
        (WorkloadSpec(shape="chat"), CLOSED, "workload `chat` has no prompts"),
        (workload(), LoadSpec(), "a level needs one kind of load, not none"),
        (workload(), LoadSpec(poisson_rps=1.0, concurrency=1), "one kind of load, not poisson_rps and concurrency"),
        (workload(prefix=PrefixSpec(tokens=65)), CLOSED, "prefix of 65 tokens exceeds the shortest prompt, 64"),
        (workload(UniformLength(low=1, high=250)), CLOSED, "250 [+] 8 = 258 tokens, the engine holds 256"),
        (workload(), LoadSpec(poisson_rps=20.0, max_requests=3), "no request would arrive after the warm-up of 5 s"),
    ],
)
def test_what_cannot_be_built_is_refused(spec: WorkloadSpec, load: LoadSpec, message: str) -> None:
    with pytest.raises(InputError, match=message):
        build_level(spec, load, seed=1, max_total_tokens=256)


def test_the_longest_request_may_fill_the_engine_exactly() -> None:
    assert build_level(workload(FixedLength(tokens=248)), CLOSED, seed=1, max_total_tokens=256).requests[0].index == 0


def test_a_vocabulary_of_one_token_is_refused() -> None:
    with pytest.raises(InputError, match="a vocabulary of 1 tokens"):
        build_level(workload(), CLOSED, seed=1, vocab_size=1)
