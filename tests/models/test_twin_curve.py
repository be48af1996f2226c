"""Capacity from counts of violations alone."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.models.curve import Guess, Point, crossing, evidence_against

ALLOWED = 0.01


def points(capacity: float, exponent: float, seed: int, requests: int = 4000) -> list[Point]:
    rng = np.random.default_rng(seed)
    loads = (0.7 * capacity, 0.9 * capacity, 1.2 * capacity)
    shares = [min(0.9, ALLOWED * (load / capacity) ** exponent) for load in loads]
    return [
        Point(load=load, judged=requests, violated=int(rng.binomial(requests, share)), inflation=1.0, allowed=ALLOWED)
        for load, share in zip(loads, shares, strict=True)
    ]


def test_the_interval_holds_the_true_crossing_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    held = 0
    for seed in range(200):
        found = crossing(points(10.0, float(np.exp(rng.normal(np.log(12), 0.5))), seed))
        held += found.low <= 10.0 <= found.high
    assert held / 200 == pytest.approx(0.9, abs=0.06)


def test_without_a_violation_the_crossing_lies_above_the_load() -> None:
    found = crossing([Point(load=5.0, judged=3000, violated=0, inflation=10.0, allowed=ALLOWED)])
    assert found.load > 5.0


def test_an_overload_alone_puts_the_crossing_below_it() -> None:
    found = crossing([Point(load=5.0, judged=500, violated=400, inflation=10.0, allowed=ALLOWED)])
    assert found.high < 5.0


def test_more_inflation_makes_the_interval_wider() -> None:
    seen = points(10.0, 12.0, 1)
    damped = [Point(load=p.load, judged=p.judged, violated=p.violated, inflation=20.0, allowed=ALLOWED) for p in seen]
    one, other = crossing(seen), crossing(damped)
    assert other.high / other.low > one.high / one.low


def test_a_guess_counts_as_much_as_it_is_sure_of_itself() -> None:
    seen = [Point(load=5.0, judged=600, violated=0, inflation=10.0, allowed=ALLOWED)]
    alone, vague, sure = (crossing(seen, guess=g) for g in (None, Guess(load=6.0, sd=0.4), Guess(load=6.0, sd=0.05)))
    assert sure.load == pytest.approx(6.0, rel=0.05)
    assert sure.load < vague.load < alone.load


def test_levels_that_say_otherwise_outvote_a_guess() -> None:
    found = crossing(points(10.0, 12.0, 1), guess=Guess(load=20.0, sd=0.4))
    assert found.load == pytest.approx(10.0, rel=0.1)


def test_counts_speak_against_a_load_that_they_exclude_and_not_against_one_that_nothing_was_seen_of() -> None:
    seen = points(10.0, 12.0, 1)
    assert evidence_against(seen, 10.0) < 1
    assert evidence_against(seen, 14.0) > 10
    quiet = [Point(load=9.0, judged=600, violated=0, inflation=10.0, allowed=ALLOWED)]
    assert evidence_against(quiet, 9.5) < 1
