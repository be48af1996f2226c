"""Which differences are noise: by closed forms, and by simulated pairs of equal configurations."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure import noise
from autotune.records.spec import Direction
from autotune.records.trial import Estimate

REAL = [[302.0, 303.0, 272.0], [368.0, 343.0, 359.0]]
"""tok/s of two launches of one configuration on a vLLM for the CPU, three levels each."""


def launches(values: Sequence[Sequence[float]]) -> list[list[Estimate]]:
    return [[Estimate(value=value, low=None, high=None, n=100) for value in launch] for launch in values]


def test_variances_are_those_of_the_analysis_of_variance() -> None:
    found = noise.floor(launches(REAL))
    first, second = (np.log(launch) for launch in REAL)
    within = (first.var(ddof=1) + second.var(ddof=1)) / 2
    between = 3 * np.var([first.mean(), second.mean()], ddof=1)
    assert found.within == pytest.approx(math.sqrt(within))
    assert found.across == pytest.approx(math.sqrt((between - within) / 3))
    assert found.across is not None
    assert found.freedom == 1
    assert found.across > 2 * math.sqrt(within)


def test_launches_with_other_numbers_of_repeats_are_weighted() -> None:
    """Searle's n0 for 1, 2 and 3 repeats is (6 - 14/6) / 2."""
    found = noise.floor(launches([[10.0], [11.0, 12.0], [9.0, 9.5, 9.7]]))
    groups = [np.log(g) for g in ([10.0], [11.0, 12.0], [9.0, 9.5, 9.7])]
    grand = np.concatenate(groups).mean()
    within = sum(((g - g.mean()) ** 2).sum() for g in groups) / 3
    between = sum(len(g) * (g.mean() - grand) ** 2 for g in groups) / 2
    assert found.across == pytest.approx(math.sqrt((between - within) / ((6 - 14 / 6) / 2)))


def test_launches_that_differ_no_more_than_repeats_have_no_variance_of_their_own() -> None:
    assert noise.floor(launches([[1.0, 3.0], [3.0, 1.0]])).across == 0


def test_one_launch_tells_nothing_about_launches() -> None:
    found = noise.floor(launches([[302, 303, 272]]))
    assert found.within is not None
    assert (found.across, found.mean_sd, found.freedom, found.tie_ratio(3)) == (None, None, 0, None)
    compared = noise.compare(launches([[100.0] * 3]), launches([[900.0] * 3]))
    assert (compared.winner, compared.freedom, compared.ratio.low, compared.ratio.high) == ("tie", 0, None, None)


def test_the_interval_is_students_on_the_launches_and_not_on_the_repeats() -> None:
    a, b = [[10.0, 10.2], [11.0, 10.8], [10.5, 10.4]], [[12.0], [13.0]]
    compared = noise.compare(launches(a), launches(b))
    first, second = [np.log(launch).mean() for launch in a], [np.log(launch).mean() for launch in b]
    expected = scipy.stats.ttest_ind(first, second).confidence_interval(1 - 0.05 * 2 / 3)
    assert compared.freedom == 3
    assert (compared.ratio.low, compared.ratio.high) == pytest.approx((math.exp(expected.low), math.exp(expected.high)))


@pytest.mark.parametrize(("count", "winner"), [(2, "tie"), (3, "a")])
def test_two_launches_each_can_not_tell_modes_from_a_difference(count: int, winner: str) -> None:
    compared = noise.compare(
        launches([[200.0], [201.0], [200.5]][:count]), launches([[100.0], [101.0], [100.5]][:count])
    )
    assert compared.winner == winner
    assert compared.ratio.low is not None


def test_the_reference_lends_its_launches() -> None:
    """One launch each is no tie any more when launches are known to differ by one percent."""
    known = noise.floor(launches([[100.0], [101.0], [99.0], [100.5], [99.5], [100.0]]))
    compared = noise.compare(launches([[100.0]]), launches([[120.0]]), known=known)
    assert (compared.winner, compared.freedom) == ("b", 5)
    ratio = known.tie_ratio(1)
    assert ratio is not None
    inside, outside = (
        noise.compare(launches([[100.0]]), launches([[100 * ratio * factor]]), known=known) for factor in (0.999, 1.001)
    )
    assert (inside.winner, outside.winner) == ("tie", "b")


def test_less_is_better_where_the_objective_says_so() -> None:
    low, high = launches([[10.0], [10.1], [9.9]]), launches([[20.0], [20.1], [19.9]])
    assert noise.compare(low, high).winner == "b"
    assert noise.compare(low, high, direction=Direction.MINIMIZE).winner == "a"


@pytest.mark.parametrize("values", [[], [[]], [[0.0]], [[1.0], [-2.0]], [[math.nan]]])
def test_figures_without_a_logarithm_are_refused(values: list[list[float]]) -> None:
    with pytest.raises(ValueError, match="above 0"):
        noise.floor(launches(values))


POSITIVE = st.lists(st.lists(st.floats(0.1, 1e4), min_size=1, max_size=3), min_size=1, max_size=4)


@given(POSITIVE, POSITIVE)
def test_who_is_compared_with_whom_makes_no_difference(a: list[list[float]], b: list[list[float]]) -> None:
    there, back = noise.compare(launches(a), launches(b)), noise.compare(launches(b), launches(a))
    assert {"a": "b", "b": "a", "tie": "tie"}[there.winner] == back.winner
    assert there.ratio.value == pytest.approx(1 / back.ratio.value)


# --- equal configurations -------------------------------------------------------------------------------------------

Effects = Callable[[np.random.Generator, tuple[int, ...]], np.ndarray]
EFFECTS: dict[str, Effects] = {
    "normal": lambda rng, size: rng.normal(0, 0.05, size),
    "t3": lambda rng, size: 0.05 * rng.standard_t(3, size),
    "one in two slow": lambda rng, size: np.where(rng.random(size) < 0.5, -0.3, 0.0),
    "one in five slow": lambda rng, size: np.where(rng.random(size) < 0.2, -0.15, 0) + rng.normal(0, 0.01, size),
}


@pytest.mark.parametrize("effects", EFFECTS)
@pytest.mark.parametrize("count", [2, 3, 5])
def test_equal_configurations_are_told_apart_in_at_most_5_percent(effects: str, count: int) -> None:
    """2,000 pairs, three repeats a launch; 5 % + 3 standard errors of the simulation."""
    rng, pairs = np.random.default_rng(11), 2000
    shared = EFFECTS[effects](rng, (pairs, 2, count, 1))
    values = 300 * np.exp(shared + rng.normal(0, 0.04, (pairs, 2, count, 3)))
    won = sum(noise.compare(launches(a), launches(b)).winner != "tie" for a, b in values.tolist())
    assert won / pairs <= 0.05 + 3 * math.sqrt(0.05 * 0.95 / pairs)


def test_who_counted_repeats_as_launches_would_be_fooled() -> None:
    """The same pairs with every repeat taken for a launch: this is what the simulation above is there to find."""
    rng, pairs = np.random.default_rng(11), 500
    values = np.exp(EFFECTS["normal"](rng, (pairs, 2, 3, 1)) + rng.normal(0, 0.02, (pairs, 2, 3, 3)))
    alone = ([[[repeat] for launch in side for repeat in launch] for side in pair] for pair in values.tolist())
    won = sum(noise.compare(launches(a), launches(b)).winner != "tie" for a, b in alone)
    assert won / pairs > 0.15
