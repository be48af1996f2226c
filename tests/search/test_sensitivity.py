"""What neighbours of the pick cost, and how surely a parameter mattered."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.records.spec import Direction
from autotune.records.trial import Outcome, Role
from autotune.report.importance import importances
from autotune.search.sensitivity import neighbours, with_intervals
from tests.builders import objective, trial
from tests.runs import params, study
from tests.runs import trial as measured

PICK = trial(1, value=200, args={"max_num_seqs": 64, "block_size": 16})


def test_neighbours_differ_in_few_arguments_and_say_what_they_cost() -> None:
    records = [
        trial(0, value=100, role=Role.REFERENCE, args={}),
        PICK,
        trial(2, value=150, args={"max_num_seqs": 64, "block_size": 32}),
        trial(3, outcome=Outcome.OOM_STARTUP, args={"max_num_seqs": 128, "block_size": 16}),
        trial(4, value=1, args={"max_num_seqs": 1, "block_size": 2, "seed": 3}),
    ]
    found = neighbours(records, PICK, objective())
    assert [(each.trial, dict(each.changed), each.ratio) for each in found] == [
        (2, {"block_size": 32}, 0.75),
        (3, {"max_num_seqs": 128}, None),
        (0, {"max_num_seqs": None, "block_size": None}, 0.5),
    ]


def test_a_neighbour_is_worse_below_one_when_minimising_too() -> None:
    near = trial(2, value=400, args={"max_num_seqs": 64, "block_size": 32})
    (found,) = neighbours([PICK, near], PICK, replace(objective(), direction=Direction.MINIMIZE))
    assert found.ratio == 0.5


def test_importance_has_an_interval_that_holds_it_and_too_few_trials_have_none() -> None:
    trials = [
        measured(n, Outcome.OK, params(8 + 30 * n, 512 + 997 * n % 8000), tok_per_s=100.0 + n, ttft_ms=100)
        for n in range(30)
    ]
    found = with_intervals(trials, lambda some: importances(study(), some))
    share, low, high = found["max_num_seqs"]
    assert share == pytest.approx(importances(study(), trials)["max_num_seqs"])  # type: ignore[index]
    assert low <= share <= high
    assert low < high
    assert with_intervals(trials[:5], lambda some: importances(study(), some)) == {}
