"""The table from outcome to what Optuna is told."""

from __future__ import annotations

from dataclasses import replace

import optuna
import pytest

from autotune.records.quality import Quality, QualityFigure, QualitySpec, QualityStatus
from autotune.records.spec import Direction
from autotune.records.trial import Outcome
from autotune.search.told import LAUNCH, QUALITY, told
from tests.builders import objective, trial, verdict

OBJECTIVE = objective()
EDGE = 0.4
LESSONS = [outcome for outcome in Outcome if outcome.teaches_infeasible]
SILENT = [outcome for outcome in Outcome if not outcome.teaches_infeasible and not outcome.measured]


@pytest.mark.parametrize("outcome", LESSONS)
def test_the_candidates_own_failure_ranks_below_every_miss(outcome: Outcome) -> None:
    worst_miss = replace(trial(1, outcome=Outcome.SLO_MISS, value=1.0), verdict=verdict("fail", 1e9))
    crash, miss = told(trial(0, outcome=outcome), OBJECTIVE), told(worst_miss, OBJECTIVE)
    assert crash.state == "PRUNED"
    assert sum(crash.constraints.values()) > sum(miss.constraints.values()) > 0


@pytest.mark.parametrize("outcome", SILENT)
def test_what_is_not_the_candidates_fault_teaches_nothing(outcome: Outcome) -> None:
    lesson = told(trial(0, outcome=outcome), OBJECTIVE)
    assert (lesson.state, lesson.value, dict(lesson.constraints)) == ("FAIL", None, {})


@pytest.mark.parametrize("outcome", [Outcome.OK, Outcome.SLO_MISS, Outcome.UNSURE])
def test_a_measured_trial_is_complete_with_its_objective(outcome: Outcome) -> None:
    lesson = told(trial(0, outcome=outcome, value=12.5), OBJECTIVE)
    assert (lesson.state, lesson.value) == ("COMPLETE", 12.5)
    assert (lesson.constraints["ttft_ms.p90"] <= 0) == (outcome is not Outcome.SLO_MISS)


@pytest.mark.parametrize("outcome", [Outcome.UNSURE, Outcome.SLO_MISS])
def test_a_figure_whose_audit_failed_is_never_told(outcome: Outcome) -> None:
    distrusted = trial(0, outcome=outcome, value=900.0)
    assert distrusted.verdict is not None
    distrusted = replace(distrusted, verdict=replace(distrusted.verdict, untrusted=("a flag was not applied",)))
    lesson = told(distrusted, OBJECTIVE)
    assert (lesson.state, lesson.value) == ("PRUNED", None)


def test_every_trial_has_the_same_constraints_in_the_same_order() -> None:
    keys = {
        tuple(told(trial(0, outcome=outcome, value=1.0 if outcome.measured else None), OBJECTIVE).constraints)
        for outcome in (*LESSONS, Outcome.OK, Outcome.SLO_MISS, Outcome.UNSURE)
    }
    assert keys == {("ttft_ms.p90", LAUNCH)}


def test_wrong_answers_rank_below_every_miss_and_above_what_cannot_start() -> None:
    """Of two wrong ones the nearly right one is the better; other studies' constraints stay as they were."""
    checked = objective(quality=QualitySpec())

    def wrong(excess: float) -> float:
        figure = QualityFigure(name="perplexity_ratio", value=2.0, own=1.0, noise=0.0, limit=1.02, excess=excess)
        found = Quality(status=QualityStatus.FAILED, figures=(figure,))
        lesson = told(replace(trial(0, outcome=Outcome.WRONG_OUTPUT), quality=found), checked)
        assert (lesson.state, tuple(lesson.constraints)) == ("PRUNED", ("ttft_ms.p90", QUALITY, LAUNCH))
        return sum(lesson.constraints.values())

    worst_miss = replace(trial(1, outcome=Outcome.SLO_MISS, value=1.0), verdict=verdict("fail", 1e9))
    miss, crash = told(worst_miss, checked), told(trial(2, outcome=Outcome.OOM_STARTUP), checked)
    assert sum(miss.constraints.values()) < wrong(0.1) < wrong(50.0) < sum(crash.constraints.values())


@pytest.mark.parametrize(("direction", "worst"), [(Direction.MAXIMIZE, 3.0), (Direction.MINIMIZE, 9.0)])
def test_samplers_that_learn_from_complete_alone_are_told_the_worst_value(direction: Direction, worst: float) -> None:
    lesson = told(
        trial(0, outcome=Outcome.OOM_LOAD), replace(OBJECTIVE, direction=direction), complete_only=True, seen=(9.0, 3.0)
    )
    assert (lesson.state, lesson.value) == ("COMPLETE", worst)
    assert lesson.constraints[LAUNCH] == 2.0


def test_tpe_learns_from_crashes_told_this_way() -> None:
    """A toy with an edge beyond which candidates die: what TPE proposes late dies less often than at random."""

    def died_late(*, tell_fail: bool) -> int:
        study = optuna.create_study(
            sampler=optuna.samplers.TPESampler(seed=3, n_startup_trials=8), direction="maximize"
        )
        deaths = 0
        for number in range(60):
            asked = study.ask()
            memory = asked.suggest_float("memory", 0, 1)
            if memory <= EDGE:
                lesson = told(trial(number, value=memory), OBJECTIVE)
            else:
                deaths += number >= 30
                lesson = told(
                    trial(number, outcome=Outcome.ENVIRONMENT if tell_fail else Outcome.OOM_STARTUP), OBJECTIVE
                )
            for key, value in lesson.constraints.items():
                asked.set_constraint(key, value)
            study.tell(asked, lesson.value, state=lesson.trial_state)
        return deaths

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    assert died_late(tell_fail=False) < 20 < died_late(tell_fail=True)  # seeds 0-5: 12 to 15, and 28 to 30
