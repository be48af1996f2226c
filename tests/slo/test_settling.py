"""Before a launch it is known which SLOs a load can't settle."""

from __future__ import annotations

import pytest

from autotune.records.spec import (
    Bound,
    CapacitySpec,
    FixedLength,
    GammaArrivals,
    LoadSpec,
    LogNormalLength,
    RampArrivals,
    Slo,
    TraceArrivals,
    UniformLength,
    WorkloadSpec,
)
from autotune.slo import mean_tokens, requests_needed_to_pass, samples_expected, unsettled
from tests.builders import objective

P99 = Slo(metric="ttft_ms.p99", limit=500)


def test_a_load_that_sends_too_few_requests_is_told_with_both_figures_and_what_to_do() -> None:
    load = LoadSpec(poisson_rps=8, duration_s=120)
    needed = requests_needed_to_pass(P99, 0.95, load)
    (sentence,) = unsettled(objective(slos=(P99,), load=load, confidence=0.95))
    assert sentence.startswith(
        f"ttft_ms.p99 needs {needed:.0f} requests without a violation; this load gives about 960"
    )
    assert "only ever be unsure" in sentence
    duration_s = int(sentence.split("duration_s to ")[1].split(",")[0])
    assert [*unsettled(objective(slos=(P99,), load=LoadSpec(poisson_rps=8, duration_s=duration_s)))] == []
    assert duration_s - needed / 8 <= 10


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (LoadSpec(poisson_rps=8, duration_s=100, warmup_s=10, repeats=3), 2400),
        (LoadSpec(poisson_rps=8, duration_s=100, warmup_s=10, max_requests=380), 300),
        (LoadSpec(concurrency=8, duration_s=100, warmup_s=10, max_requests=380), 380),
        (LoadSpec(concurrency=8, duration_s=100), None),
        (LoadSpec(constant_rps=8, duration_s=100), 800),
        (LoadSpec(gamma=GammaArrivals(rps=8, burstiness=2), duration_s=100), 800),
        (LoadSpec(ramp=RampArrivals(from_rps=2, to_rps=8), duration_s=100), 500),
        (LoadSpec(trace=TraceArrivals(file="t.jsonl"), duration_s=100), None),
        (LoadSpec(trace=TraceArrivals(file="t.jsonl"), duration_s=100, max_requests=50), 50),
        (LoadSpec(capacity=CapacitySpec(), duration_s=100, max_requests=50), None),
    ],
)
def test_the_load_says_how_many_requests_it_gives(load: LoadSpec, expected: float | None) -> None:
    assert samples_expected(P99, objective(load=load)) == expected
    if expected is None:
        assert [*unsettled(objective(slos=(P99,), load=load))] == []


def test_gaps_are_as_many_as_tokens_after_the_first() -> None:
    itl = Slo(metric="itl_ms.p99", limit=50)
    load = LoadSpec(poisson_rps=2, duration_s=100)
    workload = WorkloadSpec(input_tokens=FixedLength(tokens=9), output_tokens=UniformLength(low=10, high=12))
    assert samples_expected(itl, objective(load=load, workload=workload)) == 200 * 10
    assert samples_expected(itl, objective(load=load, workload=WorkloadSpec(dataset="x.jsonl"))) is None


def test_a_limit_of_zero_can_never_be_proven() -> None:
    none = Slo(metric="error_ratio", limit=0.0)
    (sentence,) = unsettled(objective(slos=(none,), load=LoadSpec(poisson_rps=8, duration_s=1000)))
    assert "endlessly many" in sentence
    assert "never proven" in sentence


def test_slos_that_are_not_judged_by_counts_are_left_alone() -> None:
    floor = Slo(metric="output_tok_per_s", limit=100, bound=Bound.MIN)
    assert [*unsettled(objective(slos=(floor,), load=LoadSpec(poisson_rps=0.1, duration_s=10)))] == []


def test_means_of_lengths() -> None:
    assert mean_tokens(LogNormalLength(median=100, sigma=0.5, low=1, high=1000)) == pytest.approx(113.3, rel=1e-3)
    assert mean_tokens(LogNormalLength(median=100, sigma=3.0, low=1, high=300)) == 300
