from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.measure import estimates
from autotune.records.spec import LoadSpec
from autotune.slo import requests_needed_to_pass
from autotune.slo.sequential import Counts, boundary, inflation_floor, samples_to_pass, statistic
from tests.slo.making import at_least, at_most


def test_the_boundary_at_95_percent_is_2_94() -> None:
    assert boundary(0.95) == pytest.approx(math.log(0.95 / 0.05))
    assert boundary(0.95) == pytest.approx(2.944, abs=5e-4)


def test_the_statistic_is_the_damped_log_likelihood_ratio() -> None:
    plain = 3 * math.log(0.02 / 0.005) + 97 * math.log(0.98 / 0.995)
    assert statistic(Counts(judged=100, violated=3, inflation=1), 0.01) == pytest.approx(plain)
    assert statistic(Counts(judged=100, violated=3, inflation=30), 0.01) == pytest.approx(plain / 30)


def test_a_p99_takes_194_requests_times_the_inflation() -> None:
    assert samples_to_pass(0.01, 0.95, 1) == 194
    assert requests_needed_to_pass(at_most("ttft_ms.p99", 500), 0.95) == pytest.approx(194 * 110, rel=0.01)


@pytest.mark.parametrize("share", [0.001, 0.01, 0.1, 0.3, 0.4, 0.5, 0.9])
def test_the_least_number_to_pass_passes_and_one_less_does_not(share: float) -> None:
    n = int(samples_to_pass(share, 0.95, 7))
    assert statistic(Counts(judged=n, violated=0, inflation=7), share) <= -boundary(0.95)
    assert statistic(Counts(judged=n - 1, violated=0, inflation=7), share) > -boundary(0.95)


def test_a_pass_takes_fewer_requests_with_a_fixed_number_of_clients() -> None:
    slo = at_most("ttft_ms.p90", 500)
    small, large = (requests_needed_to_pass(slo, 0.95, LoadSpec(concurrency=c)) for c in (8, 64))
    assert (small, large) == (69, 549)
    assert requests_needed_to_pass(slo, 0.95, LoadSpec(poisson_rps=4)) == 1885


def test_what_is_not_counted_needs_no_requests_and_what_allows_none_can_never_pass() -> None:
    assert requests_needed_to_pass(at_most("ttft_ms.mean", 500), 0.95) == 0
    assert requests_needed_to_pass(at_least("request_rps", 5), 0.95) == 0
    assert requests_needed_to_pass(at_most("error_ratio", 0), 0.95) == math.inf
    assert requests_needed_to_pass(at_most("error_ratio", 1), 0.95) == 0


@pytest.mark.parametrize("metric", ["ttft_ms.p99", "ttft_ms.p95", "e2e_ms.p50"])
def test_floors_of_the_open_loop_grow_with_the_requests_in_flight(metric: str) -> None:
    assert inflation_floor(at_most(metric, 1), open_loop=True, in_flight=None) == 110
    assert inflation_floor(at_most(metric, 1), open_loop=True, in_flight=400) == 200


def test_errors_have_a_floor_of_their_own() -> None:
    assert inflation_floor(at_most("error_ratio", 0.01), open_loop=True, in_flight=400) == 4


@pytest.mark.parametrize(("factor", "wrong"), [(0.5, "fail"), (2.0, "pass")])
def test_bursts_seldom_mislead_outside_the_indifference_zone(factor: float, wrong: str) -> None:
    """400 levels of a p90 with 16 clients; violations come in bursts of inflation 8, as the floor assumes."""
    rng, share, memory, floor = np.random.default_rng(3), 0.1 * factor, 7 / 9, 8.0
    levels, n = 400, int(1.5 * samples_to_pass(0.1, 0.95, floor))
    draws, state = rng.random((n, levels)), rng.random(levels) < share
    events = np.empty((n, levels), dtype=np.bool_)
    for i in range(n):
        events[i] = state
        state = np.where(state, draws[i] >= (1 - share) * (1 - memory), draws[i] < share * (1 - memory))
    rulings = []
    for series in events.T:
        counts = Counts(judged=n, violated=int(series.sum()), inflation=max(floor, estimates.inflation(series)))
        reached = statistic(counts, 0.1)
        rulings.append("pass" if reached <= -boundary(0.95) else "fail" if reached >= boundary(0.95) else "unsure")
    assert rulings.count(wrong) <= 0.05 * levels
    assert rulings.count("pass" if wrong == "fail" else "fail") >= 0.25 * levels
