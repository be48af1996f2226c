"""The statistics beneath the sampler, against closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest

from autotune.search.auto.averaging import Points, Shape, believe
from autotune.search.auto.gaussian import (
    Distances,
    Kernel,
    distances,
    expected_improvement,
    normal_cdf,
    posterior,
    structures_apart,
)

NOWHERE = np.zeros(1, dtype=np.bool_)


def _at(measured: list[float], asked: list[float]) -> Distances:
    a, b, one = np.array([measured]).T, np.array([asked]).T, np.ones(1)
    return Distances(
        measured=distances(a, a, one),
        measured_structures=structures_apart(a, a, NOWHERE),
        asked=distances(b, a, one),
        asked_structures=structures_apart(b, a, NOWHERE),
    )


def test_one_measurement_is_shrunk_by_its_noise_and_forgotten_far_away() -> None:
    kernel = Kernel(amplitude=1.0, offset=0.0)
    found = posterior(kernel, _at([0.0], [0.0, 100.0]), np.array([[2.0]]), noise=0.5)
    assert found.mean[0] == pytest.approx([2.0 / 1.25, 0.0], abs=1e-6)
    assert found.deviation == pytest.approx([math.sqrt(1 - 1 / 1.25), 1.0], rel=1e-4)
    density = -0.5 * 4 / 1.25 - 0.5 * math.log(2 * math.pi * 1.25)
    assert found.evidence[0] == pytest.approx(density, rel=1e-6)


def test_expected_improvement_is_that_of_a_normal() -> None:
    draws = np.random.default_rng(1).normal(0.3, 0.5, 400_000)
    found = expected_improvement(np.array([0.3]), np.array([0.5]), 0.6)[0]
    assert found == pytest.approx(np.maximum(draws - 0.6, 0).mean(), rel=0.02)
    assert normal_cdf(np.array([1.96]))[0] == pytest.approx(0.975, abs=1e-4)


@pytest.mark.parametrize("right", [True, False])
def test_the_simulator_keeps_or_loses_its_say_by_what_was_measured(right: bool) -> None:
    rng = np.random.default_rng(2)
    places = rng.random((14, 3))
    values = 2 * np.sin(3 * places[:, 0]) + places[:, 1]
    predicted = values if right else -values
    asked = rng.random((20, 3))
    truth = 2 * np.sin(3 * asked[:, 0]) + asked[:, 1]
    shape = Shape(scales=np.ones(3), plain_scales=np.ones(3), structural=np.zeros(3, dtype=np.bool_))
    belief = believe(
        Points(features=places, predicted=predicted[None]),
        values[None],
        Points(features=asked, predicted=(truth if right else -truth)[None]),
        shape,
    )[0]
    assert bool(belief.weights[:4].sum() > 0.9) is right
    assert np.abs(belief.mean - truth).max() < (0.1 if right else 1.0)


def test_what_is_pending_lowers_the_doubt_there_and_leaves_the_mean() -> None:
    places, values = np.array([[0.1], [0.9]]), np.array([[0.0, 1.0]])
    none, asked = np.full((1, 2), np.nan), Points(features=np.array([[0.5]]), predicted=np.full((1, 1), np.nan))
    shape = Shape(scales=np.full(1, 0.3), plain_scales=np.full(1, 0.3), structural=NOWHERE)
    before = believe(Points(features=places, predicted=none), values, asked, shape)[0]
    after = believe(Points(features=places, predicted=none), values, asked, shape, asked)[0]
    assert (after.deviations < before.deviations).all()
    assert after.mean == pytest.approx(before.mean, abs=0.02)
