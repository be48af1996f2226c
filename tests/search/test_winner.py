"""Who wins: settled before unsettled, the better figure, ties to the configuration nearest the reference."""

from __future__ import annotations

from dataclasses import replace

from autotune.records.spec import Direction
from autotune.records.trial import Estimate, Outcome, Role, TrialRecord
from autotune.search.winner import gain, nearest, pick
from tests.builders import estimate, objective, trial, verdict

OBJECTIVE = objective()


def _reference(value: float = 100.0) -> TrialRecord:
    return trial(0, value=value, role=Role.REFERENCE, args={"max_num_seqs": 64})


def test_the_highest_figure_wins_when_intervals_are_apart() -> None:
    records = [_reference(), trial(1, value=150, args={"max_num_seqs": 8}), trial(2, value=200)]
    assert pick(records, OBJECTIVE) is records[2]


def test_the_lowest_figure_wins_when_minimising() -> None:
    records = [_reference(), trial(1, value=50), trial(2, value=200)]
    assert pick(records, replace(OBJECTIVE, direction=Direction.MINIMIZE)) is records[1]


def test_a_tie_goes_to_the_configuration_nearest_the_reference() -> None:
    near = trial(1, value=150, half_width=10, args={"max_num_seqs": 32})
    far = trial(2, value=155, half_width=10, args={"max_num_seqs": 32, "block_size": 32})
    assert pick([_reference(), far, near], OBJECTIVE) is near


def test_a_reference_that_ties_with_the_best_is_the_winner() -> None:
    reference = replace(_reference(), objective=estimate(100, 8))
    assert pick([reference, trial(1, value=104, half_width=8)], OBJECTIVE) is reference


def test_a_settled_pass_beats_a_better_figure_that_is_unsettled() -> None:
    records = [_reference(), trial(1, value=900, outcome=Outcome.UNSURE)]
    assert pick(records, OBJECTIVE) is records[0]


def test_an_unsettled_candidate_is_handed_over_only_when_none_passes() -> None:
    miss = trial(0, value=100, role=Role.REFERENCE, outcome=Outcome.SLO_MISS)
    unsure = trial(1, value=90, outcome=Outcome.UNSURE)
    assert pick([miss, unsure], OBJECTIVE) is unsure


def test_nothing_is_picked_when_every_candidate_misses_or_fails() -> None:
    records = [trial(0, value=100, outcome=Outcome.SLO_MISS), trial(1, outcome=Outcome.OOM_STARTUP)]
    assert pick(records, OBJECTIVE) is None


def test_an_untrusted_figure_never_wins() -> None:
    distrusted = trial(1, value=900)
    distrusted = replace(distrusted, verdict=replace(verdict("pass"), untrusted=("client limited",)))
    records = [_reference(), distrusted]
    assert pick(records, OBJECTIVE) is records[0]


def test_nearest_is_the_smallest_sum_of_excesses() -> None:
    close = replace(trial(1, outcome=Outcome.SLO_MISS, value=1), verdict=verdict("fail", 0.1))
    distant = replace(trial(2, outcome=Outcome.SLO_MISS, value=1), verdict=verdict("fail", 2.0))
    assert nearest([distant, close, trial(3, outcome=Outcome.OOM_LOAD)]) is close
    assert nearest([trial(3, outcome=Outcome.OOM_LOAD)]) is None


def test_gain_is_above_one_when_better_in_either_direction() -> None:
    better = trial(1, value=150, half_width=15)
    reference = replace(_reference(), objective=Estimate(value=100, low=90, high=110, n=9))
    found = gain(better, reference, OBJECTIVE)
    assert found is not None
    assert found.value == 1.5
    assert found.low == 135 / 110
    assert found.high == 165 / 90
    turned = gain(reference, better, replace(OBJECTIVE, direction=Direction.MINIMIZE))
    assert turned == found


def test_gain_is_unknown_without_a_measured_reference() -> None:
    assert gain(trial(1, value=150), None, OBJECTIVE) is None
