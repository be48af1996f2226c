"""What the words of `autotune export --pick` mean."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.records.finals import FinalRun, FinalStage
from autotune.records.spec import Direction
from autotune.records.trial import Outcome, TrialRecord
from autotune.search.picks import Point, front, knee, picked
from tests.runs import study
from tests.runs import trial as measured

SPEC = study()


def trial(number: int, tok_per_s: float, ttft_ms: float, outcome: Outcome = Outcome.OK) -> TrialRecord:
    return measured(number, outcome, tok_per_s=tok_per_s, ttft_ms=ttft_ms)


BOW = [
    trial(0, 100, 50),
    trial(1, 190, 60),
    trial(2, 200, 200),
    trial(3, 150, 190),
    trial(4, 300, 90, Outcome.SLO_MISS),
]


def test_the_front_holds_what_no_feasible_trial_beats() -> None:
    assert [point.trial for point in front(SPEC, BOW)] == [0, 1, 2]


@pytest.mark.parametrize(("word", "number"), [("latency", 0), ("knee", 1), ("throughput", 2), ("3", 3)])
def test_a_word_means_a_trial(word: str, number: int) -> None:
    assert picked(SPEC, BOW, word) == number


def test_a_final_stands_for_the_configuration_that_it_measured_again() -> None:
    again = replace(trial(5, 900, 1), final=FinalRun(of=1, stage=FinalStage.ROUND, round=1, after=4))
    assert picked(SPEC, [*BOW, again], "5") == 1
    assert picked(SPEC, [*BOW, again], "throughput") == 2


def test_less_is_better_of_an_objective_that_is_a_cost() -> None:
    spec = replace(SPEC, objective=replace(SPEC.objective, direction=Direction.MINIMIZE))
    assert [point.trial for point in front(spec, [trial(0, 300, 50), trial(1, 100, 90), trial(2, 400, 95)])] == [0, 1]
    assert picked(spec, [trial(0, 300, 50), trial(1, 100, 90)], "throughput") == 1


@pytest.mark.parametrize("word", ["kneee", "-1", "99", "²", ""])
def test_a_word_that_means_nothing_is_refused(word: str) -> None:
    with pytest.raises(InputError):
        picked(SPEC, BOW, word)


def test_there_is_no_front_where_nothing_met_the_slos() -> None:
    with pytest.raises(InputError, match="no trial met every SLO"):
        picked(SPEC, [trial(0, 1, 1, Outcome.SLO_MISS)], "knee")
    assert knee(()) is None


@given(st.lists(st.tuples(st.floats(1, 1e4), st.floats(1, 1e4)), min_size=1, max_size=20))
def test_no_point_of_a_front_is_beaten_and_every_other_trial_is(figures: list[tuple[float, float]]) -> None:
    records = [trial(n, tok, ms) for n, (tok, ms) in enumerate(figures)]
    points = front(SPEC, records)
    for one in points:
        assert not any(beats(other, one) for other in points)
    on = {point.trial for point in points}
    for number, (tok, ms) in enumerate(figures):
        if number not in on:
            assert any(p.throughput >= tok and p.latency <= ms for p in points)
    assert knee(points) in points


def beats(one: Point, other: Point) -> bool:
    return one != other and one.throughput >= other.throughput and one.latency <= other.latency
