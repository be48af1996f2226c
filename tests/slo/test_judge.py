from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.records.spec import Bound, Slo
from autotune.records.trial import Estimate, LevelRecord, Measurement, Ruling, SloRuling
from autotune.slo import constraint_value, judge
from autotune.slo.judge import NOT_MEASURED
from tests.slo.making import Levels, at_least, at_most, counted, figure, objective, seen

P90 = at_most("ttft_ms.p90", 200)
SEVERITY = {Ruling.PASS: 0, Ruling.UNSURE: 1, Ruling.FAIL: 2}


def ruled(slo: Slo, *levels: tuple[LevelRecord, Measurement]) -> SloRuling:
    (ruling,) = judge(objective(slo), levels).slos
    return ruling


# --- counts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("violated", "judged", "value", "expected"),
    [
        (0, 69, 150, Ruling.PASS),
        (0, 68, 150, Ruling.UNSURE),
        (30, 300, 199, Ruling.UNSURE),
        (60, 300, 250, Ruling.FAIL),
        (11, 40, 250, Ruling.UNSURE),
        (13, 40, 250, Ruling.FAIL),
    ],
)
def test_a_quantile_is_ruled_by_its_violations(violated: int, judged: int, value: float, expected: Ruling) -> None:
    ruling = ruled(P90, seen(counted(P90, violated, judged), ttft_ms_p90=figure(value, n=judged)))
    assert ruling.ruling is expected
    assert ruling.excess == pytest.approx(value / 200 - 1)
    assert f"{violated} of {judged}" in ruling.why


def test_an_unsure_ruling_says_what_a_pass_takes() -> None:
    ruling = ruled(P90, seen(counted(P90, 0, 68), ttft_ms_p90=figure(150)))
    assert ruling.why == "0 of 68 violate, 0.1 of them may: a pass takes at least 69"


def test_bursts_seen_in_the_level_take_more_to_settle() -> None:
    def by(inflation: float) -> Ruling:
        return ruled(P90, seen(counted(P90, 5, 300, inflation), ttft_ms_p90=figure(150))).ruling

    assert (by(1), by(20)) == (Ruling.PASS, Ruling.UNSURE)


def test_an_open_loop_takes_more_to_pass_than_a_closed_one() -> None:
    closed = seen(counted(P90, 0, 600), ttft_ms_p90=figure(150))
    opened = seen(counted(P90, 0, 600), ttft_ms_p90=figure(150), open_loop=True)
    assert ruled(P90, closed).ruling is Ruling.PASS
    assert ruled(P90, opened).ruling is Ruling.UNSURE


def test_requests_in_flight_are_counted_by_littles_law() -> None:
    """10 a second for 4 s are 40 in flight, for 40 s they are 400 and D is 200."""

    def lasting(time_ms: float) -> Ruling:
        values = {"ttft_ms.p90": figure(150), "request_rps": figure(10), "e2e_ms.mean": figure(time_ms)}
        record, measurement = seen(counted(P90, 0, 1900), open_loop=True)
        return ruled(P90, (record, replace(measurement, values=values))).ruling

    assert (lasting(4000), lasting(40_000)) == (Ruling.PASS, Ruling.UNSURE)


def test_repeats_of_one_launch_are_pooled() -> None:
    half = seen(counted(P90, 1, 50), ttft_ms_p90=figure(100, 90, 130, 50))
    other = seen(counted(P90, 1, 50), ttft_ms_p90=figure(140, 110, 180, 50))
    assert ruled(P90, half).ruling is Ruling.UNSURE
    pooled = ruled(P90, half, other)
    assert pooled.ruling is Ruling.PASS
    assert pooled.estimate == Estimate(value=120, low=120 - math.hypot(5, 15), high=120 + math.hypot(15, 20), n=100)


def test_a_side_that_one_repeat_cannot_bound_stays_open() -> None:
    levels = [seen(counted(P90, 0, 50), ttft_ms_p90=figure(100, 90, high, 50)) for high in (None, 110)]
    estimate = ruled(P90, *levels).estimate
    assert estimate is not None
    assert estimate.low is not None
    assert estimate.high is None


def test_a_pass_never_contradicts_the_figure() -> None:
    """1,050 of 10,000 are statistically nearer to p*/2 than to 2 p*, yet the p90 is above its limit."""
    ruling = ruled(P90, seen(counted(P90, 1050, 10_000), ttft_ms_p90=figure(201)))
    assert ruling.ruling is Ruling.UNSURE


def test_failed_requests_fail_a_latency_that_looks_fine() -> None:
    """The successes are fast; a third of the requests failed. The excess is that of the share of violations."""
    ruling = ruled(P90, seen(counted(P90, 100, 300), ttft_ms_p90=figure(100)))
    assert ruling.ruling is Ruling.FAIL
    assert ruling.excess == pytest.approx(100 / 300 / 0.1 - 1)


def test_errors_are_ruled_by_the_same_test() -> None:
    slo = at_most("error_ratio", 0.05)
    assert ruled(slo, seen(counted(slo, 0, 148), error_ratio=figure(0))).ruling is Ruling.PASS
    assert ruled(slo, seen(counted(slo, 0, 147), error_ratio=figure(0))).ruling is Ruling.UNSURE
    assert ruled(slo, seen(counted(slo, 30, 147), error_ratio=figure(30 / 147))).ruling is Ruling.FAIL


def test_a_limit_of_no_errors_at_all_fails_with_the_first_and_never_passes() -> None:
    slo = at_most("error_ratio", 0)
    assert ruled(slo, seen(counted(slo, 0, 10**6), error_ratio=figure(0))).ruling is Ruling.UNSURE
    failed = ruled(slo, seen(counted(slo, 1, 100), error_ratio=figure(0.01)))
    assert failed.ruling is Ruling.FAIL
    assert constraint_value(failed) == NOT_MEASURED


# --- intervals and figures ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("slo", "estimate", "expected"),
    [
        (at_most("ttft_ms.mean", 10), figure(8, 7, 9), Ruling.PASS),
        (at_most("ttft_ms.mean", 10), figure(9.5, 8, 11), Ruling.UNSURE),
        (at_most("ttft_ms.mean", 10), figure(12, 11, 13), Ruling.FAIL),
        (at_most("ttft_ms.mean", 10), figure(8, None, None, 1), Ruling.UNSURE),
        (at_least("ttft_ms.mean", 10), figure(12, 11, 13), Ruling.PASS),
        (at_least("ttft_ms.mean", 10), figure(8, 7, 9), Ruling.FAIL),
    ],
)
def test_means_are_ruled_by_their_interval(slo: Slo, estimate: Estimate, expected: Ruling) -> None:
    assert ruled(slo, seen(ttft_ms_mean=estimate)).ruling is expected


def test_a_rate_that_falls_short_has_its_shortfall_as_excess() -> None:
    ruling = ruled(at_least("request_rps", 10), seen(request_rps=figure(8, 7, 9)))
    assert ruling.ruling is Ruling.FAIL
    assert ruling.excess == pytest.approx(0.2)


@pytest.mark.parametrize(("value", "expected"), [(60, Ruling.PASS), (60.1, Ruling.FAIL)])
def test_a_figure_of_the_launch_is_taken_as_it_is(value: float, expected: Ruling) -> None:
    assert ruled(at_most("startup_s", 60), seen(startup_s=figure(value, n=1))).ruling is expected


# --- nothing measured, overload, the whole --------------------------------------------------------------------------


def test_nothing_measured_fails_only_when_all_requests_failed() -> None:
    slo = at_most("ttft_ms.mean", 10)
    failed = ruled(slo, seen(requests=5, errors=5))
    assert (failed.ruling, failed.estimate, failed.excess) == (Ruling.FAIL, None, None)
    assert failed.why == "all 5 requests failed"
    assert ruled(slo, seen(requests=5, errors=4)).ruling is Ruling.UNSURE
    assert ruled(slo, seen()).ruling is Ruling.UNSURE


def test_an_overloaded_level_fails_the_slo_that_the_guard_named() -> None:
    """Whatever was measured before the queue grew."""
    other = at_most("tpot_ms.p90", 50)
    level = seen(
        counted(P90, 0, 500),
        counted(other, 0, 500),
        stopped="overload: ttft_ms.p90: 80 requests wait",
        ttft_ms_p90=figure(100),
        tpot_ms_p90=figure(20),
    )
    first, second = judge(objective(P90, other), [level]).slos
    assert (first.ruling, first.why, first.excess) == (Ruling.FAIL, "overload: ttft_ms.p90: 80 requests wait", None)
    assert second.ruling is Ruling.PASS


def test_fail_outweighs_unsure_and_unsure_pass() -> None:
    good, open_, bad = at_most("startup_s", 100), at_least("request_rps", 10), at_most("gpu_memory_bytes", 1)
    level = seen(startup_s=figure(5), request_rps=figure(10, 9, 11), gpu_memory_bytes=figure(2))
    assert judge(objective(good), [level]).ruling is Ruling.PASS
    assert judge(objective(good, open_), [level]).ruling is Ruling.UNSURE
    assert judge(objective(good, open_, bad), [level]).ruling is Ruling.FAIL
    assert judge(objective(), [level]).ruling is Ruling.PASS


def test_doubts_of_all_levels_are_copied_once() -> None:
    levels: Levels = [seen(untrusted=("a", "b")), seen(untrusted=("b", "c"))]
    assert judge(objective(), levels).untrusted == ("a", "b", "c")


# --- what Optuna is told --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("excess", "value"),
    [(0.0, 0.0), (1.0, 0.5), (-1.0, -0.5), (1e9, NOT_MEASURED), (None, NOT_MEASURED), (math.inf, NOT_MEASURED)],
)
def test_constraint_values_are_below_one(excess: float | None, value: float) -> None:
    ruling = SloRuling(metric="m", bound=Bound.MAX, limit=1, estimate=None, excess=excess, ruling=Ruling.UNSURE)
    assert constraint_value(ruling) == value


# --- laws -----------------------------------------------------------------------------------------------------------

CONFIDENCE = st.sampled_from([0.8, 0.95, 0.99])
LATENCIES = st.lists(st.floats(1, 1000), min_size=1, max_size=400)


def severity(limit: float, latencies: list[float], confidence: float, inflation: float) -> int:
    slo = at_most("ttft_ms.p90", limit)
    value = sorted(latencies)[math.ceil(0.9 * len(latencies) - 1e-9) - 1]
    violated = sum(latency > limit for latency in latencies)
    level = seen(counted(slo, violated, len(latencies), inflation), ttft_ms_p90=figure(value))
    return SEVERITY[judge(objective(slo, confidence=confidence), [level]).ruling]


@given(LATENCIES, st.floats(1, 1000), st.floats(1, 5), CONFIDENCE, st.floats(1, 40))
def test_loosening_a_limit_never_makes_a_ruling_worse(
    latencies: list[float], limit: float, looser: float, confidence: float, inflation: float
) -> None:
    assert severity(limit * looser, latencies, confidence, inflation) <= severity(
        limit, latencies, confidence, inflation
    )


@given(st.integers(1, 3000), st.data(), CONFIDENCE, st.floats(1, 40))
def test_more_violations_never_make_a_ruling_better(
    judged: int, data: st.DataObject, confidence: float, inflation: float
) -> None:
    fewer = data.draw(st.integers(0, judged))
    more = data.draw(st.integers(fewer, judged))
    slo = at_most("error_ratio", 0.1)

    def worse(violated: int) -> int:
        level = seen(counted(slo, violated, judged, inflation), error_ratio=figure(violated / judged))
        return SEVERITY[judge(objective(slo, confidence=confidence), [level]).ruling]

    assert worse(fewer) <= worse(more)


@given(LATENCIES, st.floats(1, 1000), st.floats(1, 40))
def test_more_confidence_never_settles_what_less_left_open(
    latencies: list[float], limit: float, inflation: float
) -> None:
    less, more = (severity(limit, latencies, c, inflation) for c in (0.8, 0.99))
    assert more in {less, SEVERITY[Ruling.UNSURE]}
