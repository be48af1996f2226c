"""When a level is stopped since its verdict is settled, and which part of it is then judged."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest

from autotune.records.trial import Estimate, LevelRecord, RequestRecord, Ruling, SloRuling, Verdict
from autotune.slo import Rule, Standing, Stopper, overload_guard, settled_by
from autotune.slo.stopping import FIRST_LOOK, Resolved
from tests.slo.making import at_most, figure, objective, seen
from tests.slo.test_guard import Now, answer

TTFT = at_most("ttft_ms.p90", 500)


def request(index: int, *, warmup: bool = False, error: str | None = None) -> RequestRecord:
    """Ten start each second."""
    return replace(answer(index / 10 + 1, warmup=warmup, error=error), index=index, scheduled_s=index / 10)


def standing(ruling: Ruling, objective: Estimate | None = None) -> Standing:
    one = SloRuling(
        metric=TTFT.metric, bound=TTFT.bound, limit=500, estimate=None, excess=None, ruling=ruling, why="why"
    )
    return Standing(verdict=Verdict(slos=(one,), ruling=ruling), objective=objective)


def stopper(rule: Rule | None, metric: str = "output_tok_per_s") -> Stopper:
    return Stopper(guard=overload_guard(objective(TTFT)), rule=rule, metric=metric)


def fed(rule: Rule | None, count: int = 250, phase: str = "window", metric: str = "output_tok_per_s") -> str | None:
    """Asked after each of `count` requests until it stops."""
    one = stopper(rule, metric)
    for index in range(count):
        one.record(request(index))
        if reason := one(Now(elapsed_s=index / 10 + 1, phase=phase)):
            return reason
    return None


# --- what stops -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (standing(Ruling.FAIL), "settled: ttft_ms.p90 fails: why"),
        (standing(Ruling.UNSURE, figure(100, 99, 101)), None),
        (standing(Ruling.PASS, figure(100, 98, 102)), "settled: every SLO holds"),
        (standing(Ruling.PASS, figure(100, 97.9, 102.1)), None),
        (standing(Ruling.PASS, figure(100, 99, None)), None),
        (standing(Ruling.PASS), None),
        (None, None),
    ],
)
def test_a_fail_stops_at_once_and_a_pass_once_the_objective_is_known(
    found: Standing | None, reason: str | None
) -> None:
    assert fed(lambda _requests, _until_s: found) == reason


@pytest.mark.parametrize("metric", ["startup_s", "capacity_rps"])
def test_an_objective_that_this_level_does_not_tell_needs_no_precision(metric: str) -> None:
    assert settled_by(fed(lambda *_: standing(Ruling.PASS), metric=metric))


def test_without_an_slo_nothing_is_ever_settled() -> None:
    nothing = Standing(verdict=Verdict(slos=(), ruling=Ruling.PASS), objective=figure(100, 100, 100))
    assert fed(lambda *_: nothing) is None


@pytest.mark.parametrize("phase", ["warmup", "drain"])
def test_only_the_window_is_looked_at(phase: str) -> None:
    assert fed(lambda *_: standing(Ruling.FAIL), phase=phase) is None


def test_the_guard_speaks_first_and_without_a_rule_too() -> None:
    stuck = [Now(elapsed_s=t, waiting_first_token=1, oldest_wait_s=t, completions_5s=0) for t in (2.0, 4.0, 7.0)]
    assert [settled_by(stopper(None)(now)) for now in stuck] == [False] * 3
    one = stopper(None)
    assert [one(now) is not None for now in stuck] == [False, False, True]


def test_looks_begin_with_twenty_and_grow_rarer() -> None:
    looked: list[int] = []

    def rule(requests: Sequence[RequestRecord], _until_s: float) -> Standing | None:
        looked.append(len(requests))
        return None

    assert fed(rule, 2000) is None
    assert looked[:3] == [FIRST_LOOK, 22, 25]
    assert all(b > 1.05 * a for a, b in pairwise(looked))
    assert len(looked) < 90


# --- what is looked at ----------------------------------------------------------------------------------------------


def test_nothing_after_a_request_that_still_runs_is_looked_at() -> None:
    resolved = Resolved()
    for index in (0, 1, 3, 4):
        resolved.add(request(index, warmup=index == 0))
    assert ([r.index for r in resolved.requests], resolved.measured) == ([0, 1], 1)
    assert 0.1 < resolved.until_s < 0.2
    resolved.add(request(2, error="boom"))
    assert ([r.index for r in resolved.requests], resolved.measured) == ([0, 1, 2, 3, 4], 4)
    assert resolved.until_s == math.nextafter(0.4, 1)


def test_a_request_that_was_cut_has_not_ended() -> None:
    resolved = Resolved()
    resolved.add(request(0, error="cut"))
    assert resolved.requests == []


def test_the_window_of_a_settled_level_ends_with_what_was_looked_at() -> None:
    one = stopper(lambda *_: standing(Ruling.FAIL))
    for index in range(30):
        one.record(request(index))
    reason = one(Now(elapsed_s=9))
    level, _ = seen()
    ended: LevelRecord = replace(level, stopped=reason, window_s=(1.0, 9.0))
    assert one.trimmed(ended).window_s == (1.0, math.nextafter(2.9, 3))
    assert one.trimmed(replace(ended, stopped="out of time")).window_s == (1.0, 9.0)
    early = replace(request(30, error="cut"), scheduled_s=2.5)  # sent by another client, unknown when it was decided
    assert one.trimmed(replace(ended, requests=(early,))).window_s == (1.0, 2.5)


# --- intervals, looked at all the time ------------------------------------------------------------------------------


def of_mean(ruling: Ruling, estimate: Estimate) -> Standing:
    one = SloRuling(metric="ttft_ms.mean", bound=TTFT.bound, limit=100, estimate=estimate, excess=None, ruling=ruling)
    return Standing(verdict=Verdict(slos=(one,), ruling=ruling), objective=figure(100, 99, 101))


@pytest.mark.parametrize(
    ("ruling", "estimate", "settled"),
    [
        (Ruling.FAIL, figure(103, 101, 105), False),  # clear of the limit for one look
        (Ruling.FAIL, figure(103, 102, 105), True),
        (Ruling.PASS, figure(97, 95, 98.7), False),
        (Ruling.PASS, figure(97, 95, 98), True),
        (Ruling.PASS, figure(97, 95, None), False),
    ],
)
def test_an_interval_has_to_be_clear_of_the_limit_by_more(ruling: Ruling, estimate: Estimate, settled: bool) -> None:
    assert settled_by(fed(lambda *_: of_mean(ruling, estimate))) is settled
    assert not settled_by(fed(lambda *_: of_mean(ruling, estimate), count=190))


def test_one_slo_that_is_clearly_missed_is_enough() -> None:
    clear, other = of_mean(Ruling.FAIL, figure(200, 199, 201)), of_mean(Ruling.FAIL, figure(103, 101, 105))
    both = Verdict(slos=(*other.verdict.slos, *standing(Ruling.FAIL).verdict.slos), ruling=Ruling.FAIL)
    assert fed(lambda *_: replace(clear, verdict=both)) == "settled: ttft_ms.p90 fails: why"
