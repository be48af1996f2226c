"""Cost: golden figures, units, and what must hold for every price."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost import (
    Deployment,
    break_even_tok_per_month,
    monthly_cost,
    payback_tok,
    replicas_for,
    usd_per_million_tok,
    usd_per_useful_response,
    wh_per_million_tok,
)
from autotune.records.trial import Estimate

positive = st.floats(min_value=1e-3, max_value=1e6)


def rate(value: float, low: float | None = None, high: float | None = None) -> Estimate:
    return Estimate(value=value, low=low, high=high, n=100)


def test_a_fixed_bill_breaks_even_with_an_api_at_its_volume() -> None:
    assert break_even_tok_per_month(32_800, 4.20) / 1e9 == pytest.approx(7.81, abs=0.005)


def test_a_fixed_bill_over_little_traffic_is_dear_by_the_token() -> None:
    bill = monthly_cost(Deployment(replicas=1, gpus_per_replica=1, usd_per_gpu_hour=0, overheads_usd=32_800))
    assert bill.usd_per_million_tok(1e9) == pytest.approx(32.80)
    assert bill.usd_per_million_tok(0) == math.inf


def test_ten_nodes_for_the_traffic_of_eight_cost_a_fifth_more() -> None:
    ten, eight = (
        monthly_cost(Deployment(replicas=n, gpus_per_replica=8, usd_per_gpu_hour=2.5)).total_usd for n in (10, 8)
    )
    assert 1 - eight / ten == pytest.approx(0.20)


def test_tokens_cost_what_their_gpus_cost_meanwhile() -> None:
    """3600 $/h is 1 $/s; 1000 tokens a second then cost 1000 $ a million."""
    cost = usd_per_million_tok(rate(1000, 900, 1250), usd_per_hour=3600)
    assert cost is not None
    assert [cost.value, cost.low, cost.high] == pytest.approx([1000, 800, 1111.11], rel=1e-4)


def test_answers_that_miss_their_slo_earn_nothing_but_are_paid_for() -> None:
    every, half = (usd_per_useful_response(rate(rps), usd_per_hour=36) for rps in (10.0, 5.0))
    assert every is not None
    assert half is not None
    assert [every.value, half.value] == pytest.approx([0.001, 0.002])
    assert usd_per_useful_response(rate(0, 0, 0.1), usd_per_hour=36) is None


def test_an_interval_that_reaches_nothing_leaves_the_dear_side_open() -> None:
    cost = usd_per_million_tok(rate(10, 0, 20), usd_per_hour=1)
    assert cost is not None
    assert cost.low == pytest.approx(1 / 20 / 3600 * 1e6)
    assert cost.high is None


def test_energy_is_told_per_million_tokens() -> None:
    assert wh_per_million_tok(energy_j=3600, tokens=1e6) == pytest.approx(1.0)
    assert wh_per_million_tok(energy_j=3600, tokens=0) is None


def test_headroom_is_a_share_of_capacity_kept_free() -> None:
    assert [replicas_for(80, 10, headroom) for headroom in (0.0, 0.2, 0.5)] == [8, 10, 16]
    assert replicas_for(0.1, 10, 0.0) == 1


@pytest.mark.parametrize(("capacity", "headroom"), [(0, 0.1), (-1, 0.1), (10, 1.0), (10, -0.1)])
def test_replicas_of_nothing_are_refused(capacity: float, headroom: float) -> None:
    with pytest.raises(ValueError, match="no replicas"):
        replicas_for(1, capacity, headroom)


def test_starts_are_inside_the_bill_and_preparation_is_on_top() -> None:
    d = Deployment(
        replicas=2,
        gpus_per_replica=4,
        usd_per_gpu_hour=3,
        startup_s=300,
        preparation_s=3600,
        starts_per_month=10,
        overheads_usd=1000,
        downtime_hours_per_month=0.5,
        downtime_usd_per_hour=200,
    )
    bill = monthly_cost(d)
    assert bill.gpus_usd == pytest.approx(2 * 4 * 3 * 730)
    assert bill.startups_usd == pytest.approx(2 * 10 * (300 / 3600) * 12)
    assert bill.preparation_usd == pytest.approx(10 * 12)
    assert bill.total_usd == pytest.approx(bill.gpus_usd + bill.preparation_usd + 1000 + 100)


def test_a_study_pays_back_only_when_the_price_fell() -> None:
    assert payback_tok(50, before_usd_per_million=2.0, after_usd_per_million=1.5) == pytest.approx(1e8)
    assert payback_tok(50, 1.5, 1.5) == math.inf


@given(positive, positive, positive)
def test_the_break_even_volume_costs_the_same_both_ways(usd: float, api: float, price: float) -> None:
    volume = break_even_tok_per_month(usd, api)
    bill = monthly_cost(Deployment(replicas=1, gpus_per_replica=1, usd_per_gpu_hour=0, overheads_usd=usd))
    assert bill.usd_per_million_tok(volume) == pytest.approx(api)


@given(positive, positive, st.floats(min_value=0, max_value=0.9))
def test_replicas_hold_the_rate_and_one_fewer_would_not(rps: float, capacity: float, headroom: float) -> None:
    count = replicas_for(rps, capacity, headroom)
    usable = capacity * (1 - headroom)
    assert count * usable >= rps * (1 - 1e-6)
    assert count == 1 or (count - 1) * usable < rps
