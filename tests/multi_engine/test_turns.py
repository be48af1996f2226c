"""Whose turn it is: no engine starves whatever the sampler wants, one that can't run is left, one that is done too."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from autotune.records.trial import Outcome, TrialRecord
from autotune.search.turns import DOOMED_LAUNCHES, DUPLICATES_IN_A_ROW, FAIR_SHARE, REFUSALS_PER_TRIAL, Turns, doomed
from tests.runs import trial

AB = ("a", "b")


def of(engine: str | None, outcome: Outcome = Outcome.OK) -> TrialRecord:
    measured = {"tok_per_s": 100.0, "ttft_ms": 100.0} if outcome.measured else {"cause": "Traceback\nno room"}
    return replace(trial(0, outcome, **measured), engine=engine)


def turns(*records: TrialRecord, engines: tuple[str | None, ...] = AB, trials: int = 40) -> Turns:
    found = Turns(engines=engines, trials=trials)
    for record in records:
        found.note(record)
    return found


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=12, max_size=60), st.integers(2, 3))
def test_every_engine_gets_its_share_at_every_moment_whatever_the_sampler_wants(wants: list[str], count: int) -> None:
    engines = ("a", "b", "c")[:count]
    found = turns(*(of(engine) for engine in engines), engines=engines)
    counts = dict.fromkeys(engines, 1)
    for wanted in wants:
        chosen = found.due or (wanted if wanted in engines else "a")
        counts[chosen] += 1
        found.note(of(chosen))
        total = sum(counts.values())
        assert min(counts.values()) >= int(FAIR_SHARE * total / count)


def test_of_two_the_sampler_chooses_while_neither_is_behind() -> None:
    assert turns(of("a"), of("b")).due is None
    assert turns(of("a"), of("a"), of("b")).due == "b"


def test_one_of_which_nothing_ran_is_given_up_with_its_cause_and_the_rest_is_the_others() -> None:
    failed = [of("b", Outcome.OOM_STARTUP)] * DOOMED_LAUNCHES
    found = turns(of("a"), *failed)
    assert found.running == ("a",)
    assert found.due == "a"
    assert found.why_out("b") == "given up: none of its 4 launches could be measured; the last: no room"
    assert doomed(failed[:-1]) is None
    assert doomed([*failed, of("b")]) is None


def test_a_single_engine_is_never_given_up_for_failing() -> None:
    found = turns(*([of(None, Outcome.OOM_STARTUP)] * 20), engines=(None,))
    assert (found.running, found.due, found.why_over) == ((None,), None, None)


def test_one_whose_space_is_done_is_left_until_it_has_something_new() -> None:
    found = turns(of("a"), of("b"))
    for _ in range(DUPLICATES_IN_A_ROW):
        found.repeated("b")
    assert (found.running, found.due) == (("a",), "a")
    found.proposed("b")
    assert found.running == AB


def test_one_of_which_nearly_nothing_is_allowed_does_not_end_the_study() -> None:
    refused = [of("b", Outcome.RULED_OUT)] * (REFUSALS_PER_TRIAL * 4 // 2)
    found = turns(of("a"), of("b"), *refused, trials=4)
    assert found.running == ("a",)
    assert found.why_over is None
    assert found.why_out("b") == "40 proposals were ruled out before a launch"


def test_when_none_is_left_each_ones_reason_is_told() -> None:
    found = turns(*[of("a", Outcome.OOM_STARTUP), of("b", Outcome.UNKNOWN)] * DOOMED_LAUNCHES)
    assert found.why_over is not None
    assert found.why_over.startswith("a: given up")
    assert "; b: given up" in found.why_over
