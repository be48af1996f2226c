"""Encoding, candidates, what crashes teach, and when a search is settled."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.search.auto.candidates import Candidates
from autotune.search.auto.encoding import axis_of, encoding_of
from autotune.search.auto.figures import excess_score, told_excess
from autotune.search.auto.history import Observation
from autotune.search.auto.landscape import Landscape
from autotune.search.auto.launchable import MemoryDoubt, survives, untried_or_held
from autotune.search.auto.prior import Prediction
from autotune.search.auto.settled import IN_A_ROW, LEAST_LAUNCHES, WORTH_RATIO, Expectation, why_settled
from tests.search.auto.problems import build

DISTRIBUTIONS = [
    optuna.distributions.IntDistribution(8, 1024, log=True),
    optuna.distributions.IntDistribution(1, 64, step=3),
    optuna.distributions.FloatDistribution(0.8, 0.95, step=0.01),
    optuna.distributions.FloatDistribution(1e-3, 1.0, log=True),
]


@given(st.sampled_from(DISTRIBUTIONS), st.floats(0, 1))
def test_every_value_of_a_range_is_optunas_and_stands_where_it_was_asked_for(dist: Any, share: float) -> None:
    axis = axis_of("x", dist)
    value = axis.at(share)
    assert dist._contains(dist.to_internal_repr(value))
    assert axis.at(axis.place(value)) == value
    for moved in axis.moves(value):
        assert moved != value
        assert dist._contains(dist.to_internal_repr(moved))


@given(st.integers(0, 10_000))
def test_drawn_and_moved_candidates_are_legal(seed: int) -> None:
    rng, where = random.Random(seed), build()
    candidates = Candidates(where, encoding_of(where.distributions()))
    option = candidates.drawn(rng, 1)[0]
    for other in (*candidates.beside(option.params, rng)[:12], *candidates.astray(option.params, rng, 3)):
        assert int(other.params["max_num_batched_tokens"]) >= int(other.params["max_num_seqs"])
        assert ("long_prefill_token_threshold" in other.params) is other.params["enable_chunked_prefill"]
        assert candidates.legal(other.params, rng) == other


@given(st.floats(-0.99, 30))
def test_an_excess_survives_being_told(excess: float) -> None:
    assert told_excess(excess / (1 + abs(excess))) == pytest.approx(excess, rel=1e-6, abs=1e-9)
    assert excess_score(excess) * excess >= 0


def test_a_launch_out_of_memory_warns_of_less_room_and_one_that_held_acquits_more() -> None:
    doubt = MemoryDoubt.before()
    before = doubt.holds([(0.0, 0.1), (0.05, 0.1), (0.2, 0.1)])
    assert list(before) == sorted(before)
    doubt.learn([(0.05, 0.1)], [False])
    crashed = doubt.holds([(0.04, 0.1), (0.2, 0.1)])
    assert crashed[0] < 0.2
    assert crashed[1] > 0.8
    doubt.learn([(0.07, 0.1)], [True])
    assert doubt.holds([(0.08, 0.1)])[0] > 0.8


def test_a_crash_warns_nearby_and_a_success_beside_it_comforts() -> None:
    places, tried = np.array([[0.5, 0.5], [0.0, 0.0]]), np.array([[0.5, 0.5]])
    alone = survives(places, tried, np.ones(1))
    assert alone[0] < 0.5 < alone[1]
    beside = survives(places, np.vstack([tried, [[0.5, 0.55]]]), np.array([1.0, 0.0]))
    assert beside[0] > alone[0]


def test_a_switch_with_which_nothing_ran_is_suspect_until_something_does() -> None:
    places, switches = np.array([[0.0], [1.0]]), np.ones(1, dtype=np.bool_)
    tried = np.array([[1.0], [1.0], [1.0], [0.0]])
    chance = untried_or_held(places, tried, np.array([1.0, 1.0, 1.0, 0.0]), switches)
    assert chance[0] == 1.0
    assert chance[1] < 0.1
    assert (untried_or_held(places, tried, np.array([1.0, 0.0, 1.0, 0.0]), switches) == 1.0).all()


def _gains(*values: float) -> list[Expectation]:
    return [Expectation(number=number, gain=gain) for number, gain in enumerate(values)]


def test_a_search_is_settled_when_several_launches_in_a_row_were_expected_to_bring_little() -> None:
    little = [WORTH_RATIO / 10] * IN_A_ROW
    why = why_settled(_gains(0.1, *little), launched=LEAST_LAUNCHES)
    assert why is not None
    assert "another launch would likely gain less than 0.1%" in why
    assert why_settled(_gains(0.1, *little), launched=LEAST_LAUNCHES - 1) is None
    assert why_settled(_gains(*little[1:]), launched=LEAST_LAUNCHES) is None
    assert why_settled(_gains(*little[1:], 0.1), launched=LEAST_LAUNCHES) is None


class Counting:
    """A prior that counts what it is asked."""

    version, asked = 0, 0

    def predict(self, _: Any) -> Prediction | None:
        self.asked += 1
        return Prediction(objective=float(self.asked))

    def learn(self, _: Any) -> None:
        """Nothing."""


def test_a_candidate_is_simulated_once_a_version_of_the_prior_launched_or_not() -> None:
    prior, where = Counting(), build()
    candidates = Candidates(where, encoding_of(where.distributions()))
    landscape = Landscape(candidates, prior, 1, maximise=True).refreshed()
    option, asked = landscape.pool[0], prior.asked
    launched = Observation(
        number=7, params=option.params, args=dict(reversed(list(option.args.items()))), value=1.0, ran=True
    )
    assert landscape.predicted(launched) == landscape.predict(option)
    assert prior.asked == asked
    prior.version = 1
    landscape.refreshed().predicted(launched)
    assert prior.asked > asked
