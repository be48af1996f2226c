"""Operating limits: closed forms, laws, and the project's own simulator with an admission limit."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost import operating_limits, reject_ratio
from autotune.models.config import from_vllm_args
from autotune.models.shapes import gpu_of, shape_of
from autotune.models.simulation import simulate, trace_of
from tests.cost.rejecting import refused_ratio

rates = st.floats(0.01, 500)


def erlang_b(offered: float, servers: int) -> float:
    """By the recursion B(n) = a B(n-1) / (n + a B(n-1)); loss of M/M/c/c."""
    loss = 1.0
    for n in range(1, servers + 1):
        loss = offered * loss / (n + offered * loss)
    return loss


@given(rates, st.integers(1, 200))
def test_without_a_queue_it_is_erlangs_loss_formula(rate: float, servers: int) -> None:
    assert reject_ratio(rate, 10.0, servers, servers) == pytest.approx(erlang_b(rate * servers / 10, servers), abs=1e-9)


@given(st.floats(0.01, 3.0), st.integers(1, 60))
def test_one_server_has_the_textbooks_closed_form(load: float, room: int) -> None:
    expected = 1 / (room + 1) if math.isclose(load, 1) else (1 - load) * load**room / (1 - load ** (room + 1))
    assert reject_ratio(load, 1.0, 1, room) == pytest.approx(expected, rel=1e-6, abs=1e-12)


@given(rates, st.integers(1, 50), st.integers(0, 50))
def test_more_room_refuses_no_more_and_what_is_over_capacity_is_refused(rate: float, servers: int, queue: int) -> None:
    ratio = reject_ratio(rate, 10.0, servers, servers + queue)
    assert reject_ratio(rate, 10.0, servers, servers + queue + 1) <= ratio + 1e-12
    assert max(0.0, 1 - 10.0 / rate) - 1e-9 <= ratio <= 1


def test_extremes_neither_overflow_nor_divide_by_nothing() -> None:
    assert reject_ratio(1e-9, 1e3, 10_000, 20_000) == 0.0
    assert reject_ratio(0.0, 1.0, 1, 1) == 0.0
    assert reject_ratio(1e9, 1.0, 1000, 2000) == pytest.approx(1.0)


@pytest.mark.parametrize(("servers", "room"), [(0, 5), (6, 5)])
def test_room_for_fewer_than_are_served_is_refused(servers: int, room: int) -> None:
    with pytest.raises(ValueError, match="no queue"):
        reject_ratio(1, 1, servers, room)


def test_in_flight_is_littles_law_with_a_margin() -> None:
    limits = operating_limits(capacity_rps=10, e2e_ms=4000)
    assert limits.in_flight_mean == pytest.approx(40)
    assert (limits.in_flight_max, limits.queue_max) == (math.ceil(40 + 2 * math.sqrt(40)), 0)


def test_who_waits_still_has_the_first_token_in_time() -> None:
    """380 ms are left of 500; at 10 a second that is what 3 before one take."""
    limits = operating_limits(capacity_rps=10, e2e_ms=4000, ttft_ms=120, ttft_limit_ms=500)
    assert (limits.queue_max, limits.admitted_max) == (3, limits.in_flight_max + 3)
    assert operating_limits(capacity_rps=10, e2e_ms=4000, ttft_ms=600, ttft_limit_ms=500).queue_max == 0


@pytest.mark.parametrize(("capacity", "e2e"), [(0, 100), (1, 0)])
def test_limits_of_nothing_are_refused(capacity: float, e2e: float) -> None:
    with pytest.raises(ValueError, match="no limits"):
        operating_limits(capacity_rps=capacity, e2e_ms=e2e)


def test_a_simulated_engine_refuses_no_more_than_the_formula_says() -> None:
    """Llama 8B on a simulated H100, 1024 tokens in, 128 out on average, at a capacity of 30 requests a second. The
    engine gives more than its capacity when it is overloaded (the SLO breaks before the throughput does), so that the
    formula is on the high side; docs/cost.md has the figures."""
    shape, gpu = shape_of("meta-llama/Llama-3.1-8B-Instruct"), gpu_of("h100")
    assert shape is not None
    assert gpu is not None
    config = from_vllm_args({"max_model_len": 8192, "max_num_seqs": 256}, shape, gpu)
    rng = np.random.default_rng(3)
    arrival_s, outputs = np.cumsum(rng.exponential(1 / 30, 3000)), rng.geometric(1 / 128, 3000)
    calm = simulate(trace_of(np.full(3000, 1024), outputs, arrival_s), config)
    limits = operating_limits(
        capacity_rps=30,
        e2e_ms=float(np.mean((calm.finish_s - calm.sent_s)[300:])) * 1e3,
        ttft_ms=float(np.median(calm.ttft_s[300:])) * 1e3,
        ttft_limit_ms=500,
    )
    for load, least in ((0.8, 0.0), (1.2, 0.05), (1.5, 0.2)):
        refused = refused_ratio(config, 30 * load, limits.admitted_max, requests=800, prompt=1024, output=128)
        assert least <= refused <= limits.reject_ratio(30 * load) + 0.01
