"""The sampler auto: legal, never twice the same, reproducible, resumable, and no worse for a prior that is wrong."""

from __future__ import annotations

from statistics import median

import optuna
import pytest

from autotune.search.auto import AutoSampler
from autotune.search.auto.sampler import GAIN
from autotune.search.told import LAUNCH
from autotune.space import RuledOut
from tests.search.auto.problems import (
    BEST,
    Params,
    Scripted,
    Truth,
    build,
    continued,
    inverted,
    launch,
    launches_until,
    scrambled,
    study,
    truth,
)

PRIORS = {"none": None, "right": truth, "inverted": inverted, "scrambled": scrambled}


def _prior(says: Truth | None) -> Scripted | None:
    return None if says is None else Scripted(says)


@pytest.mark.parametrize("name", PRIORS)
def test_proposals_obey_the_rules_and_none_is_made_twice(name: str) -> None:
    of, where = study(_prior(PRIORS[name])), build()
    met = [tuple(sorted(launch(of, where).items(), key=str)) for _ in range(14)]
    assert len(set(met)) == len(met)


def test_the_same_seed_proposes_the_same_and_another_seed_does_not() -> None:
    def run(seed: int) -> list[Params]:
        of, where = study(None, seed=seed), build()
        return [launch(of, where) for _ in range(6)]

    assert run(1) == run(1)
    assert run(1) != run(2)


@pytest.mark.parametrize("name", ["none", "right"])
def test_a_study_that_was_interrupted_goes_on_as_it_would_have(name: str) -> None:
    whole, where = study(_prior(PRIORS[name])), build()
    for _ in range(9):
        launch(whole, where)
    half = study(_prior(PRIORS[name]))
    for _ in range(5):
        launch(half, where)
    resumed = continued(half, AutoSampler(build(), prior=_prior(PRIORS[name]), seed=1, trials=40))
    for _ in range(4):
        launch(resumed, where)
    assert [t.params for t in resumed.trials] == [t.params for t in whole.trials]


def test_a_right_prior_finds_the_best_at_once_and_none_finds_it_in_a_few_dozen() -> None:
    assert launches_until(study(Scripted(truth)), 0.95, 5) <= 3
    assert launches_until(study(None), 0.95, 60) < 60


@pytest.mark.parametrize("says", [inverted, scrambled])
def test_a_wrong_prior_costs_little(says: Truth) -> None:
    """Within 90 % of the best: the median of three seeds, in launches, against none. By far more than the 1.3 that the
    benchmark asks for is a defect; so few seeds can't tell less."""
    free = median(launches_until(study(None, seed=seed), 0.9, 50) for seed in (1, 2, 3))
    misled = median(launches_until(study(Scripted(says), seed=seed), 0.9, 50) for seed in (1, 2, 3))
    assert misled <= 2 * free + 3


def test_after_a_few_crashes_their_region_is_left_alone() -> None:
    """More than half of the space crashes, the best by the prior among it."""

    def crashes(params: Params) -> bool:
        return bool(params["kv_cache_dtype"] == "fp8")

    of, where = study(Scripted(truth)), build()
    met = [crashes(launch(of, where, crashes=crashes)) for _ in range(14)]
    assert sum(met[:4]) >= 1
    assert sum(met[7:]) <= 2


def test_what_runs_elsewhere_is_not_proposed_again_nor_beside() -> None:
    of, where = study(Scripted(truth)), build()
    for _ in range(3):
        launch(of, where)
    running = []
    for _ in range(4):
        candidate = where.suggest(of.ask())
        assert not isinstance(candidate, RuledOut)
        running.append(tuple(sorted(candidate.params.items(), key=str)))
    assert len(set(running)) == 4
    seqs = {dict(each)["max_num_seqs"] for each in running}
    assert len(seqs) > 1, "parallel workers should not all try the same place"


def test_what_is_enqueued_is_kept_and_the_rest_filled_in_legally() -> None:
    of, where = study(Scripted(truth)), build()
    of.enqueue_trial({"max_num_seqs": 1000, "enable_chunked_prefill": False})
    params = launch(of, where)
    assert (params["max_num_seqs"], params["enable_chunked_prefill"]) == (1000, False)
    assert params["max_num_batched_tokens"] >= 1024


def test_other_samplers_go_on_with_its_study_and_it_with_theirs() -> None:
    of, where = study(Scripted(truth)), build()
    for _ in range(4):
        launch(of, where)
    other = continued(of, optuna.samplers.TPESampler(seed=1, n_startup_trials=2))
    for _ in range(4):
        trial = other.ask()
        candidate = where.suggest(trial)
        if isinstance(candidate, RuledOut):
            other.tell(trial, state=optuna.trial.TrialState.FAIL)
        else:
            other.tell(trial, truth(candidate.params))
    back = continued(other, AutoSampler(build(), prior=Scripted(truth), seed=3, trials=40))
    assert launch(back, where)


def test_minimising_is_maximising_the_inverse() -> None:
    def cost(params: Params) -> float:
        return 1e4 / truth(params)

    of = study(Scripted(cost), direction="minimize")
    assert launches_until(of, 0.95, 5, says=cost) <= 3


def test_values_below_zero_are_no_reason_to_fail() -> None:
    of, where = study(None), build()
    for _ in range(8):
        launch(of, where, says=lambda params: truth(params) - BEST / 2)


def test_an_slo_that_the_best_misses_is_kept() -> None:
    """Beyond 64 sequences a latency is exceeded: the proposals go to where it holds."""
    of, where = study(None), build()
    for _ in range(16):
        trial = of.ask()
        candidate = where.suggest(trial)
        assert not isinstance(candidate, RuledOut)
        over = float(candidate.params["max_num_seqs"]) / 64 - 1
        trial.set_constraint("tpot_ms.p90", over / (1 + abs(over)))
        trial.set_constraint(LAUNCH, 0.0)
        of.tell(trial, truth(candidate.params))
    late = [trial.params["max_num_seqs"] for trial in of.trials[-6:]]
    assert sum(seqs <= 80 for seqs in late) >= 4, late


def test_several_objectives_are_left_to_tpe() -> None:
    where = build()
    of = optuna.create_study(sampler=AutoSampler(where, seed=1, trials=10), directions=["maximize", "minimize"])
    for _ in range(4):
        trial = of.ask()
        candidate = where.suggest(trial)
        if isinstance(candidate, RuledOut):
            of.tell(trial, state=optuna.trial.TrialState.FAIL)
            continue
        of.tell(trial, (truth(candidate.params), float(candidate.params["max_num_seqs"])))
    assert of.best_trials


def test_the_gain_that_a_trial_was_chosen_for_stands_beside_it() -> None:
    of, where = study(Scripted(truth)), build()
    for _ in range(3):
        launch(of, where)
    assert all(trial.system_attrs[GAIN] >= 0 for trial in of.trials[1:])
