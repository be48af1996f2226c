"""Arrivals: the realised processes against their closed forms, at fixed seeds."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from autotune.errors import InputError
from autotune.load.arrivals import Segment, arrival_times, burst_rates, constant, gamma, poisson, ramp_rates, varying
from autotune.records.spec import BurstArrivals, CapacitySpec, GammaArrivals, LoadSpec, RampArrivals

BURSTS = BurstArrivals(rps=20.0, factor=6.0, burst_s=2.0, every_s=10.0)


def gaps_of(times_s: tuple[float, ...]) -> list[float]:
    return [later - earlier for earlier, later in pairwise((0.0, *times_s))]


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gamma_gaps_are_gamma_and_independent(burstiness: float) -> None:
    gaps = gaps_of(gamma(50.0, burstiness, 100.0, 3))
    assert stats.kstest(gaps, stats.gamma(1 / burstiness, scale=burstiness / 50).cdf).pvalue > 0.01
    assert abs(stats.spearmanr(gaps[:-1], gaps[1:]).statistic) < 3 / len(gaps) ** 0.5
    assert np.var(gaps) / np.mean(gaps) ** 2 == pytest.approx(burstiness, rel=0.15)


def test_gamma_counts_are_as_dispersed_as_its_gaps() -> None:
    """Variance over mean of the counts of long stretches tends to the squared coefficient of variation of the gaps."""
    counts = np.histogram(gamma(50.0, 4.0, 4000.0, 5), bins=400, range=(0, 4000))[0]
    assert np.var(counts) / np.mean(counts) == pytest.approx(4.0, rel=0.25)
    assert np.mean(counts) == pytest.approx(500, rel=0.02)


def test_constant_arrivals_are_evenly_spaced() -> None:
    times_s = constant(8.0, 10.0)
    assert len(times_s) == 80
    assert set(gaps_of(times_s)[1:]) == {0.125}
    assert times_s[0] == 0.0


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_time_changed_by_the_cumulative_rate_a_varying_process_is_a_unit_poisson_process(seed: int) -> None:
    for rates in (list(burst_rates(BURSTS, 100.0)), list(ramp_rates(RampArrivals(from_rps=2, to_rps=40), 10.0, 100.0))):
        counts = [expected(rates, at_s) for at_s in varying(iter(rates), seed)]
        gaps = gaps_of(tuple(counts))
        assert stats.kstest(gaps, stats.expon.cdf).pvalue > 0.01
        assert stats.poisson(expected(rates, 100.0)).cdf(len(counts)) == pytest.approx(0.5, abs=0.495)


def expected(rates: list[Segment], until_s: float) -> float:
    """Arrivals expected until then, by numerical integration of the rate."""

    def rate(at_s: float, part: Segment) -> float:
        return part.from_rps + (part.to_rps - part.from_rps) * (at_s - part.begin_s) / (part.end_s - part.begin_s)

    return sum(
        float(integrate.quad(rate, part.begin_s, min(part.end_s, until_s), args=(part,))[0])
        for part in rates
        if part.begin_s < until_s
    )


def test_bursts_have_their_mean_rate_and_factor() -> None:
    times_s = np.array(arrival_times(LoadSpec(bursts=BURSTS, duration_s=2000.0, warmup_s=0.0), seed=1))
    loud = np.sum(times_s % 10 < 2) / 400
    quiet = np.sum(times_s % 10 >= 2) / 1600
    assert len(times_s) / 2000 == pytest.approx(20.0, rel=0.02)
    assert loud / quiet == pytest.approx(6.0, rel=0.05)


def test_a_ramp_begins_after_the_warm_up_and_reaches_its_end() -> None:
    load = LoadSpec(ramp=RampArrivals(from_rps=10.0, to_rps=110.0), warmup_s=100.0, duration_s=100.0)
    counts = np.histogram(arrival_times(load, seed=1), bins=[0, 100, 110, 190, 200])[0]
    assert counts[0] == pytest.approx(1000, rel=0.1)
    assert counts[1] / 10 == pytest.approx(15, rel=0.3)
    assert counts[3] / 10 == pytest.approx(105, rel=0.1)


@given(st.floats(0.5, 50), st.floats(0.5, 50), st.floats(0, 20), st.integers(0, 99))
def test_a_ramp_of_any_slope_is_in_order_and_inside(first: float, last: float, warmup_s: float, seed: int) -> None:
    times_s = varying(ramp_rates(RampArrivals(from_rps=first, to_rps=last), warmup_s, warmup_s + 10), seed)
    assert list(times_s) == sorted(times_s)
    assert all(0 <= at_s <= warmup_s + 10 for at_s in times_s)


def test_a_level_ramp_is_the_poisson_process_of_its_rate() -> None:
    level = varying(ramp_rates(RampArrivals(from_rps=5, to_rps=5), 3.0, 60.0), 7)
    assert level == pytest.approx(poisson(5.0, 60.0, 7))


@pytest.mark.parametrize(
    ("slow", "fast"),
    [
        (LoadSpec(poisson_rps=2.0), LoadSpec(poisson_rps=8.0)),
        (LoadSpec(constant_rps=2.0), LoadSpec(constant_rps=8.0)),
        (
            LoadSpec(gamma=GammaArrivals(rps=2.0, burstiness=3.0)),
            LoadSpec(gamma=GammaArrivals(rps=8.0, burstiness=3.0)),
        ),
    ],
)
def test_another_rate_replays_the_same_trace(slow: LoadSpec, fast: LoadSpec) -> None:
    one, other = arrival_times(slow, 3), arrival_times(fast, 3)
    assert one == pytest.approx([at_s * 4 for at_s in other[: len(one)]])


def test_levels_of_other_seeds_are_independent() -> None:
    one, other = (np.histogram(poisson(50.0, 200.0, seed), bins=200)[0] for seed in (1_000, 1_001))
    assert abs(stats.pearsonr(one, other).statistic) < 3 / 200**0.5


@pytest.mark.parametrize(
    "load",
    [
        LoadSpec(poisson_rps=1e9),
        LoadSpec(constant_rps=1e9),
        LoadSpec(bursts=BurstArrivals(rps=1.0, factor=2.0, burst_s=1e-9, every_s=1e-8)),
    ],
)
def test_a_slip_of_the_pen_does_not_fill_the_memory(load: LoadSpec) -> None:
    with pytest.raises(InputError, match="requests or bursts"):
        arrival_times(load, 1)


def test_a_search_for_capacity_has_no_arrivals_of_its_own() -> None:
    with pytest.raises(InputError, match="no arrivals of its own"):
        arrival_times(LoadSpec(capacity=CapacitySpec()), 1)
