"""After the search: who is launched again, how often, who is handed over, and what of it survives a kill."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.records.finals import FinalRun, FinalStage, Soak
from autotune.records.spec import BudgetSpec, Direction, FinalsSpec, StudySpec
from autotune.records.trial import Outcome, Role, TrialRecord
from autotune.search.finals import AUTO_ROUNDS, Finals, finals_of, launches, search_ended
from autotune.search.finals_launch import candidate_of, setting_of
from autotune.search.separation import Look, share_of_error
from autotune.search.summary import summarise
from tests.builders import objective, study_spec, trial

REFERENCE = trial(0, value=100, role=Role.REFERENCE, args={"max_num_seqs": 64})
Gives = Callable[[FinalRun], float | Outcome | str]
"""What a final gives: the objective, how it failed, or why a soak failed ("" for one that held)."""


def spec(**changes: Any) -> StudySpec:
    return study_spec(finals=FinalsSpec(**{"soak_s": 0.0, **changes}))


def searched(*values: float, **changes: Any) -> list[TrialRecord]:
    """A search: the reference at 100, then these; each with one argument more than the one before."""
    args = [{"max_num_seqs": 64, **{f"p{i}": 1 for i in range(n + 1)}} for n in range(len(values))]
    found = [trial(n + 1, value=v, args=a, **changes) for n, (v, a) in enumerate(zip(values, args, strict=True))]
    return [REFERENCE, *found]


def final(number: int, run: FinalRun, gives: float | Outcome | str) -> TrialRecord:
    outcome = gives if isinstance(gives, Outcome) else Outcome.OK
    value = gives if isinstance(gives, float | int) else 1.0
    record = trial(number, outcome=outcome, value=value if outcome.measured else None, role=Role.FINAL)
    soak = Soak(duration_s=300, load="", failed=gives or None) if isinstance(gives, str) else None
    return replace(record, final=run, soak=soak)


def played(asked: StudySpec, records: Sequence[TrialRecord], gives: Gives) -> tuple[list[TrialRecord], Finals]:
    """The records once the finals are over, and how they stand."""
    records = list(records)
    for _ in range(200):
        standing = finals_of(asked, records)
        assert standing is not None
        if standing.next is None:
            return records, standing
        records.append(final(len(records), standing.next, gives(standing.next)))
    raise AssertionError("the finals have no end")


def by_trial(*values: float) -> Gives:
    """Each configuration always gives the same; a soak holds."""
    return lambda run: "" if run.stage is FinalStage.SOAK else values[run.of]


def order(records: Sequence[TrialRecord]) -> list[tuple[int, int]]:
    return [(r.final.round, r.final.of) for r in records if r.final is not None]


# --- who is launched, and in which order ------------------------------------------------------------------------------


def test_finalists_and_reference_are_launched_in_rounds_whose_order_rotates() -> None:
    records, _ = played(spec(rounds=3), searched(150, 151, 152), by_trial(100, 150, 151, 152))
    assert order(records) == [
        *((1, n) for n in (3, 2, 1, 0)),
        *((2, n) for n in (2, 1, 0, 3)),
        *((3, n) for n in (1, 0, 3, 2)),
    ]


def test_only_the_best_few_whose_intervals_reach_the_best_one_s_are_finalists() -> None:
    standing = finals_of(spec(), searched(150, 90, 149, 148, 147))
    assert standing is not None
    assert standing.entered == (1, 3, 4)


def test_there_are_no_finals_where_none_is_near_the_reference_or_they_are_off() -> None:
    assert finals_of(spec(), searched(50, 60)) is None
    assert finals_of(study_spec(), searched(150)) is None
    assert finals_of(spec(), []) is None


def test_a_candidate_that_met_no_slo_is_no_finalist() -> None:
    assert finals_of(spec(), [*searched(), trial(1, value=900, outcome=Outcome.SLO_MISS)]) is None


def test_who_is_behind_is_not_launched_again() -> None:
    records, standing = played(spec(), searched(150, 149), by_trial(100, 150, 110))
    assert standing.behind == (2,)
    last = max(round_ for round_, _ in order(records))
    assert last == 2 or (last, 2) not in order(records)
    assert standing.winner == 1


@pytest.mark.parametrize("finalists", [1, 3])
def test_the_launches_stay_within_what_is_promised(finalists: int) -> None:
    asked = spec(finalists=finalists, soak_s=300.0)
    assert asked.finals is not None
    least, most = launches(asked.finals)
    records, _ = played(asked, searched(150, 151, 152), by_trial(100, 150, 151, 152))
    assert least <= len(order(records)) <= most


# --- who wins ---------------------------------------------------------------------------------------------------------


def test_the_winner_of_the_finals_is_handed_over_not_that_of_the_search() -> None:
    _, standing = played(spec(), searched(150, 149), by_trial(100, 110, 150))
    assert standing.winner == 2


def test_of_those_that_stay_alike_the_nearest_to_the_reference_is_taken() -> None:
    _, standing = played(spec(), searched(150, 151, 152), by_trial(100, 150, 151, 152))
    assert (standing.winner, standing.ties) == (1, (3, 2))


def test_a_gain_within_the_noise_leaves_the_reference_where_it_is() -> None:
    noisy = {1: 1.05, 2: 0.96, 3: 1.04, 4: 0.95, 5: 1.02}
    gives: Gives = lambda run: 101 * noisy[run.round] if run.of else 100 / noisy[run.round]  # noqa: E731
    _, standing = played(spec(), searched(120), gives)
    assert standing.winner == 0


def test_smaller_is_better_when_minimising() -> None:
    asked = replace(spec(), objective=objective(direction=Direction.MINIMIZE))
    _, standing = played(asked, searched(50, 51), by_trial(100, 50, 40))
    assert standing.winner == 2


@pytest.mark.parametrize("fault", [Outcome.SLO_MISS, Outcome.OOM_LOAD])
def test_a_finalist_that_fails_once_is_out_and_the_next_best_wins(fault: Outcome) -> None:
    gives: Gives = lambda run: fault if (run.of, run.round) == (1, 2) else by_trial(100, 200, 150)(run)  # noqa: E731
    _, standing = played(spec(rounds=3), searched(150, 149), gives)
    assert set(standing.out) == {1}
    assert standing.winner == 2


def test_when_none_of_the_finalists_holds_the_next_best_get_one_chance() -> None:
    gives: Gives = lambda run: Outcome.SLO_MISS if run.of == 1 else by_trial(100, 0, 130)(run)  # noqa: E731
    records, standing = played(spec(finalists=1), searched(150, 140), gives)
    assert (standing.heat, standing.entered, standing.winner) == (1, (2,), 2)
    assert {r.final.heat for r in records if r.final} == {0, 1}


def test_when_nothing_holds_there_is_no_winner_but_a_reference_that_met_its_slos() -> None:
    gives: Gives = lambda run: by_trial(100)(run) if run.of == 0 else Outcome.SLO_MISS  # noqa: E731
    _, kept = played(spec(finalists=1), searched(150, 140), gives)
    assert kept.winner == 0
    missed = [replace(r, outcome=Outcome.SLO_MISS) if r.number == 0 else r for r in searched(150, 140)]
    _, nothing = played(spec(finalists=1), missed, gives)
    assert nothing.winner is None
    summary = summarise(spec(finalists=1), played(spec(finalists=1), missed, gives)[0], **ENDED)
    assert summary.best is None
    assert summary.finals is not None


def test_a_reference_that_crashes_leaves_a_winner_without_a_gain() -> None:
    gives: Gives = lambda run: by_trial(0, 150)(run) if run.of else Outcome.OOM_LOAD  # noqa: E731
    records, standing = played(spec(rounds=2), searched(150), gives)
    assert standing.winner == 1
    assert summarise(spec(rounds=2), records, **ENDED).gain is None


# --- the soak ---------------------------------------------------------------------------------------------------------


def test_the_winner_is_soaked_and_one_that_fails_gives_way_to_the_next() -> None:
    gives: Gives = lambda run: (  # noqa: E731
        ("ttft_ms.p90 was missed" if run.of == 2 else "")
        if run.stage is FinalStage.SOAK
        else by_trial(100, 130, 150)(run)
    )
    records, standing = played(spec(soak_s=300.0), searched(148, 150), gives)
    soaked = [r.final.of for r in records if r.final and r.final.stage is FinalStage.SOAK]
    assert soaked == [2, 1]
    assert standing.winner == 1
    assert "soak" in standing.out[2]


def test_who_was_behind_one_that_failed_its_soak_is_behind_nobody() -> None:
    gives: Gives = lambda run: (  # noqa: E731
        ("ttft_ms.p90 was missed" if run.of == 2 else "")
        if run.stage is FinalStage.SOAK
        else by_trial(100, 110, 150)(run)
    )
    _, standing = played(spec(soak_s=300.0), searched(148, 150), gives)
    assert 2 in standing.out
    assert standing.behind == ()
    assert set(standing.behind).isdisjoint({standing.winner, *standing.ties})


def test_without_time_nothing_more_is_launched_and_nothing_is_confirmed() -> None:
    asked, records = spec(soak_s=300.0), searched(150)
    late = finals_of(asked, records, late=True)
    assert late is not None
    assert (late.next, late.winner) == (None, None)
    summary = summarise(asked, records, **ENDED)
    assert (summary.best, summary.settled, summary.confirmed) == (1, True, False)
    assert any("finals were not run" in warning for warning in summary.warnings)


# --- the figures that are told ----------------------------------------------------------------------------------------

ENDED: dict[str, Any] = {"stop_reason": "", "finished": True, "wall_s": 1.0}


def test_gain_and_objective_come_from_the_finals_alone_and_the_search_s_claim_stands_apart() -> None:
    records, _ = played(spec(), searched(150), by_trial(100, 130))
    summary = summarise(spec(), records, **ENDED)
    assert summary.gain is not None
    assert summary.finals is not None
    assert summary.finals.search_gain is not None
    assert summary.gain.value == pytest.approx(1.3)
    assert summary.finals.search_gain.value == pytest.approx(1.5)
    assert summary.objective is not None
    assert summary.objective.value == pytest.approx(130)
    assert summary.gain.low is not None
    assert summary.gain.high is not None
    assert 1 < summary.gain.low < 1.3 < summary.gain.high
    assert summary.launched == 2
    assert "one launch each" not in " ".join(summary.warnings)


def test_a_gain_is_above_one_when_minimising_too() -> None:
    asked = replace(spec(), objective=objective(direction=Direction.MINIMIZE))
    records, _ = played(asked, searched(50), by_trial(100, 50))
    summary = summarise(asked, records, **ENDED)
    assert summary.gain is not None
    assert summary.gain.value == pytest.approx(2.0)


# --- what survives what -----------------------------------------------------------------------------------------------


@settings(max_examples=25, deadline=None)
@given(st.lists(st.floats(80, 200), min_size=20, max_size=20), st.integers(0, 19))
def test_killed_anywhere_the_finals_go_on_as_if_nothing_had_happened(values: list[float], at: int) -> None:
    asked, base = spec(), searched(150, 151)
    gives: Gives = lambda run: values[(run.of * 7 + run.round) % len(values)]  # noqa: E731
    whole, standing = played(asked, base, gives)
    cut = whole[: min(len(whole), len(base) + at)]
    again, resumed = played(asked, cut, gives)
    assert again == whole
    assert resumed == standing


def test_a_search_that_goes_on_makes_earlier_finals_void() -> None:
    asked = spec()
    records, _ = played(asked, searched(150), by_trial(100, 150))
    more = [*records, trial(len(records), value=50)]
    standing = finals_of(asked, more)
    assert standing is not None
    assert standing.rounds == ()
    assert standing.next is not None
    assert standing.next.after == len(records)


def test_a_study_stopped_in_its_finals_is_not_searched_on_unless_its_budget_changed() -> None:
    asked, records = spec(), searched(150)
    assert search_ended(asked, records) is None
    run = FinalRun(of=1, stage=FinalStage.ROUND, round=1, after=1, ended="settled", budget=asked.budget)
    begun = [*records, final(2, run, 150.0)]
    assert search_ended(asked, begun) == "settled"
    assert search_ended(replace(asked, budget=BudgetSpec(trials=99)), begun) is None
    assert search_ended(asked, [*begun, trial(3, value=1)]) is None


# --- how a final is launched ------------------------------------------------------------------------------------------


def test_the_same_configuration_is_launched_with_requests_that_are_the_round_s_own(setting: Any) -> None:
    runs = [FinalRun(of=of, stage=FinalStage.ROUND, round=r, after=1) for r in (1, 2) for of in (0, 1)]
    seeds = [setting_of(setting, run, []).spec.seed for run in runs]
    assert seeds[0] == seeds[1] != seeds[2] == seeds[3]
    assert setting.spec.seed not in seeds
    again = candidate_of(searched(150)[1])
    assert (again.fingerprint, again.role) == (searched(150)[1].fingerprint, Role.FINAL)


def test_a_soak_is_one_long_level_of_the_objective_s_load(setting: Any) -> None:
    soak = setting_of(setting, FinalRun(of=1, stage=FinalStage.SOAK, after=1), [])
    load = soak.spec.objective.load
    assert (load.duration_s, load.repeats, load.concurrency) == (300.0, 1, 8)


@pytest.fixture
def setting(tmp_path: Any) -> Any:
    from autotune.trial.run import TrialSetting
    from autotune.trial.store import RunDirectory
    from tests.fakes import ScriptedEngine

    engine = ScriptedEngine(lambda *_: 50.0)
    return TrialSetting(spec=spec(soak_s=300.0), engine=engine, run=RunDirectory(tmp_path), gpus=())


# --- the test of differences ------------------------------------------------------------------------------------------


def test_the_looks_share_the_error_rate() -> None:
    shares = [share_of_error(look, AUTO_ROUNDS) for look in range(1, AUTO_ROUNDS + 1)]
    assert shares[0] == 0
    assert sum(shares) == pytest.approx(1)
    assert shares == sorted(shares)


def test_what_a_round_has_in_common_cancels() -> None:
    drifting = tuple({0: 100.0 * f, 1: 120.0 * f} for f in (1.0, 1.3, 0.7))
    steady = tuple({0: 100.0, 1: 120.0} for _ in range(3))
    one, other = (Look(rounds, most=5, pairs=1, error=0.05).ratio(1, 0) for rounds in (drifting, steady))
    assert one is not None
    assert other is not None
    assert one.low == pytest.approx(other.low)
    assert one.value == pytest.approx(1.2)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(*[st.floats(0.5, 2.0)] * 3), min_size=2, max_size=5), st.floats(0.1, 10.0))
def test_ratios_are_antisymmetric_and_free_of_units(rounds: list[tuple[float, ...]], unit: float) -> None:
    looks = [
        Look(tuple({n: v * scale for n, v in enumerate(r)} for r in rounds), most=5, pairs=3, error=0.05)
        for scale in (1.0, unit)
    ]
    there, back, other = looks[0].ratio(0, 1), looks[0].ratio(1, 0), looks[1].ratio(0, 1)
    assert there is not None
    assert back is not None
    assert other is not None
    assert there.value == pytest.approx(1 / back.value)
    if there.low is not None and back.high is not None and other.low is not None:
        assert there.low == pytest.approx(1 / back.high)
        assert math.log(other.low) == pytest.approx(math.log(there.low), abs=1e-6)


def test_one_round_has_no_interval() -> None:
    ratio = Look(({0: 100.0, 1: 120.0},), most=5, pairs=1, error=0.05).ratio(1, 0)
    assert ratio is not None
    assert (ratio.low, ratio.high) == (None, None)
