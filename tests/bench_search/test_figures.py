"""What the benchmark of the search makes of runs: launches until near the optimum, and ratios to the best rival."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.search.figures import crashed_ratio, final_quality, launches_to, median_of, ratio, regret, seconds_to
from benchmarks.search.protocol import Run, Step
from benchmarks.search.results import Results, Task
from benchmarks.search.table import report


def step(value: float | None, quality: float | None, outcome: str = "ok") -> Step:
    return Step(args={"a": 1}, outcome=outcome, value=value, quality=quality, engine_s=100.0, asked_s=0.1)


def made(*steps: Step, strategy: str = "random", seed: int = 1) -> Run:
    return Run(landscape="chat-8b-h100@structural", strategy=strategy, seed=seed, steps=steps)


RUN = made(step(5.0, 0.5), step(None, 0.0, "oom_load"), step(9.7, 0.94), step(9.6, 0.96), step(9.0, None))


def test_what_counts_is_the_first_launch_that_truly_is_near_the_optimum() -> None:
    assert launches_to(RUN, 0.95) == 4
    assert seconds_to(RUN, 0.95) == 400.0
    assert math.isinf(launches_to(RUN, 0.99))
    assert math.isinf(seconds_to(RUN, 0.99))


def test_what_is_handed_over_is_what_measured_best_with_its_true_quality() -> None:
    assert final_quality(RUN) == 0.94
    assert regret(RUN) == pytest.approx([0.5, 0.5, 0.06, 0.06, 0.06])
    assert final_quality(made(step(None, 0.0, "slo_miss"))) == 0.0


def test_a_missed_slo_is_no_crash() -> None:
    assert crashed_ratio([made(step(None, 0.0, "slo_miss"), step(None, 0.0, "oom_startup"))]) == 0.5


def test_the_median_of_runs_of_which_most_never_arrived_is_never() -> None:
    assert math.isinf(median_of([3.0, math.inf, math.inf]).median)
    assert median_of([3.0, 4.0, math.inf]).median == 4.0


def test_the_ratio_is_to_the_best_rival_and_says_when_that_one_never_arrived() -> None:
    found = ratio("hill", [4.0] * 5, {"slow": [40.0] * 5, "fast": [16.0] * 5}, 51.0)
    assert (found.rival, found.value, found.bound, found.lost) == ("fast", 0.25, False, False)
    censored = ratio("hill", [4.0] * 5, {"slow": [math.inf] * 5}, 51.0)
    assert censored.bound
    assert censored.value == pytest.approx(4 / 51)
    assert ratio("hill", [math.inf] * 5, {"fast": [10.0] * 5}, 51.0).lost
    neither = ratio("hill", [math.inf] * 5, {"slow": [math.inf] * 5}, 51.0)
    assert neither.neither
    assert not neither.lost


def test_the_report_names_where_ours_loses_and_an_optimum_that_was_beaten() -> None:
    good, late = made(step(10.0, 1.01)), made(*[step(5.0, 0.5)] * 4, step(10.0, 0.97), strategy="ours")
    text = report([good, late], launches=5)
    assert "Ours loses on: chat-8b-h100@structural." in text
    assert "beat the stored optimum of chat-8b-h100@structural by 1.0%" in text


def test_runs_on_disk_are_taken_up_again_cut_to_the_launches_asked_for(tmp_path: Path) -> None:
    results = Results(tmp_path)
    task = Task(landscape=RUN.landscape, strategy="random", seed=1, launches=5)
    assert results.known(task) is None
    results.keep(task, RUN)
    assert results.known(task) == RUN
    fewer = results.known(Task(landscape=RUN.landscape, strategy="random", seed=1, launches=2))
    assert fewer is not None
    assert len(fewer.steps) == 2
    assert results.known(Task(landscape=RUN.landscape, strategy="random", seed=1, launches=6)) is None
