from __future__ import annotations

import math

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from autotune.measure import estimates

SERIES = arrays(np.float64, st.integers(1, 120), elements=st.floats(0.001, 1e6))


@pytest.mark.parametrize("freedom", range(1, 13))
@pytest.mark.parametrize("confidence", [0.6, 0.9, 0.95, 0.999])
def test_student_t_is_scipys(confidence: float, freedom: int) -> None:
    expected = scipy.stats.t.ppf((1 + confidence) / 2, freedom)
    assert estimates.student_t(confidence, freedom) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("n", [1, 5, 30, 299, 5000])
@pytest.mark.parametrize("q", [0.5, 0.9, 0.99])
def test_ranks_are_the_tightest_that_binomial_tails_allow(n: int, q: float) -> None:
    tail = 0.025
    low, high = estimates.bounding_ranks(n, q, tail)
    below = scipy.stats.binom(n, q).cdf
    if low is not None:
        assert below(low - 1) <= tail < below(low)
    else:
        assert below(0) > tail
    if high is not None:
        assert 1 - below(high - 1) <= tail < 1 - below(high - 2)
    else:
        assert 1 - below(n - 1) > tail


def test_a_p99_is_bounded_from_299_samples_on() -> None:
    """One-sided at 95 %: 0.99^299 < 0.05 <= 0.99^298."""
    assert estimates.bounding_ranks(298, 0.99, 0.05)[1] is None
    assert estimates.bounding_ranks(299, 0.99, 0.05)[1] == 299


def test_quantile_of_few_has_no_upper_bound_but_a_lower_one() -> None:
    estimate = estimates.quantile(np.arange(80.0), 0.99, 0.95)
    assert estimate is not None
    assert (estimate.value, estimate.high, estimate.n) == (79.0, None, 80)
    assert estimate.low is not None


@pytest.mark.parametrize(("q", "value"), [(0.5, 5.0), (0.9, 9.0), (0.95, 10.0), (0.01, 1.0)])
def test_quantile_is_the_smallest_value_that_the_share_does_not_exceed(q: float, value: float) -> None:
    series = np.random.default_rng(1).permutation(np.arange(1.0, 11.0))
    estimate = estimates.quantile(series, q, 0.95)
    assert estimate is not None
    assert estimate.value == value


def test_nothing_one_and_all_alike() -> None:
    nothing, one, alike = np.array([]), np.array([3.0]), np.full(500, 7.0)
    assert estimates.mean(nothing, 0.95) is None
    assert estimates.quantile(nothing, 0.5, 0.95) is None
    assert estimates.ratio(nothing > 0, 0.95) is None
    mean, median = estimates.mean(one, 0.95), estimates.quantile(one, 0.5, 0.95)
    assert mean is not None
    assert (mean.value, mean.low, mean.high, mean.n) == (3.0, None, None, 1)
    assert median is not None
    assert (median.value, median.low, median.high, median.n) == (3.0, None, None, 1)
    for estimate in (estimates.mean(alike, 0.95), estimates.quantile(alike, 0.9, 0.95)):
        assert estimate is not None
        assert (estimate.low, estimate.value, estimate.high) == (7.0, 7.0, 7.0)


def test_ratio_without_an_event_is_bounded_by_wilson() -> None:
    estimate = estimates.ratio(np.zeros(100, dtype=np.bool_), 0.95)
    assert estimate is not None
    z = scipy.stats.norm.ppf(0.975)
    assert (estimate.value, estimate.low) == (0.0, 0.0)
    assert estimate.high == pytest.approx(z * z / (100 + z * z))


def test_bursts_widen_what_scattering_does_not() -> None:
    scattered, bursty = np.zeros(2000, dtype=np.bool_), np.zeros(2000, dtype=np.bool_)
    scattered[::20] = True
    bursty[:100] = True
    assert estimates.inflation(scattered) == 1
    assert estimates.inflation(bursty) > 30


@given(SERIES)
def test_quantiles_are_ordered_and_inside_their_intervals(series: np.ndarray) -> None:
    found = [estimates.quantile(series, q, 0.95) for q in (0.01, 0.5, 0.9, 0.95, 0.99, 0.999)]
    values = [e.value for e in found if e is not None]
    assert values == sorted(values)
    for e in found:
        assert e is not None
        assert (-math.inf if e.low is None else e.low) <= e.value <= (math.inf if e.high is None else e.high)


@given(SERIES, st.sampled_from([0.25, 2.0, 1024.0]))
def test_another_unit_gives_the_same_figures_in_that_unit(series: np.ndarray, scale: float) -> None:
    def figures(values: np.ndarray) -> list[float]:
        found = (estimates.mean(values, 0.95), estimates.quantile(values, 0.9, 0.95))
        ends = [end for e in found if e is not None for end in (e.value, e.low, e.high)]
        return [math.nan if end is None else end for end in ends]

    assert figures(series * scale) == pytest.approx(
        [f * scale for f in figures(series)], nan_ok=True, rel=1e-6, abs=1e-6
    )


@pytest.mark.parametrize("memory", [0.0, 0.8])
@pytest.mark.parametrize("statistic", ["mean", "p50", "p90"])
def test_intervals_cover(memory: float, statistic: str) -> None:
    """400 runs of 800 log-normal samples, independent or AR(1): 95 % +- 3 standard errors of the simulation."""
    runs, n = 400, 800
    rng = np.random.default_rng(5)
    noise = rng.standard_normal((n, runs))
    state = noise.copy()
    for i in range(1, n):
        state[i] = memory * state[i - 1] + math.sqrt(1 - memory**2) * noise[i]
    truth = math.exp(0.125) if statistic == "mean" else math.exp(0.5 * scipy.stats.norm.ppf(float(statistic[1:]) / 100))
    covered = 0
    for series in np.exp(0.5 * state.T):
        e = (
            estimates.mean(series, 0.95)
            if statistic == "mean"
            else estimates.quantile(series, float(statistic[1:]) / 100, 0.95)
        )
        assert e is not None
        covered += (e.low is None or e.low <= truth) and (e.high is None or truth <= e.high)
    assert 0.915 <= covered / runs <= 0.992
