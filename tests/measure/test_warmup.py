"""Where the window begins: after the least warm-up, later where the answers are long, never too late."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.measure import measure, warm_from_s, warmed_up
from autotune.records.trial import RequestRecord
from tests.measure.making import WINDOW_S, level, request, steady


def first_answers(*e2e_s: float, error: str | None = None) -> list[RequestRecord]:
    """Warm-up requests that took so long."""
    return [request(900 + i, 1.0, chunk_s=(0.1, s), warmup=True, error=error) for i, s in enumerate(e2e_s)]


@pytest.mark.parametrize(("e2e_s", "begin"), [((4.0,), 10.0), ((7.0, 9.0), 16.0), ((100.0,), 40.0), ((), 10.0)])
def test_twice_the_mean_e2e_of_the_warm_up_bounded_by_half_the_window(e2e_s: tuple[float, ...], begin: float) -> None:
    assert warm_from_s(first_answers(*e2e_s), WINDOW_S) == pytest.approx(begin)


def test_failed_cut_and_measured_requests_tell_nothing() -> None:
    others = [*first_answers(20.0, error="boom"), *first_answers(20.0, error="cut"), *steady(10, chunk_s=(0.1, 20.0))]
    assert warm_from_s(others, WINDOW_S) == 10.0


def test_a_cold_start_does_not_enter_the_figures() -> None:
    """Kernels compile until second 15: what was sent before has a TTFT of seconds, the warm-up's requests too."""
    cold = [request(i, s, chunk_s=(15.5 - s, 15.6 - s), warmup=s < 10) for i, s in enumerate(range(1, 15))]
    warm = [request(100 + i, 15.0 + i / 4) for i in range(220)]
    found = measure(warmed_up(level([*cold, *warm]), WINDOW_S), metrics=(), slos=(), gpus=1, confidence=0.95)
    assert found.values["ttft_ms.p99"].value == pytest.approx(100)
    assert found.duration_s < 60
    late = measure(level([*cold, *warm]), metrics=(), slos=(), gpus=1, confidence=0.95)
    assert late.values["ttft_ms.p99"].value > 1000


def test_a_window_that_would_not_have_sufficed_says_so() -> None:
    found = warmed_up(level(first_answers(100.0)), WINDOW_S)
    assert found.window_s == (40.0, 70.0)
    assert found.notes == ("warm-up ended after 40 s, twice the mean E2E is 200 s: lengthen the level",)
    assert warmed_up(level(first_answers(15.0)), WINDOW_S).notes == ()


def test_a_level_that_was_stopped_before_has_an_empty_window() -> None:
    stopped = level(first_answers(15.0), window_s=(10.0, 20.0), stopped="overload")
    assert warmed_up(stopped, WINDOW_S).window_s == (20.0, 20.0)


@given(st.lists(st.floats(0.1, 1e4)), st.floats(10.5, 70))
def test_a_level_that_ran_out_of_requests_keeps_half_of_its_window(e2e_s: list[float], end: float) -> None:
    """However slow its first answers were: a server on a busy machine isn't one that gave nothing."""
    begin, found_end = warmed_up(level(first_answers(*e2e_s), window_s=(10.0, end)), WINDOW_S).window_s
    assert found_end == end
    assert end - begin >= (end - 10.0) / 2 - 1e-9


@given(st.lists(st.floats(0.1, 1e4)), st.floats(0, 100), st.floats(0.1, 1000))
def test_the_window_never_begins_early_nor_in_its_second_half(e2e_s: list[float], begin: float, length: float) -> None:
    found = warm_from_s(first_answers(*e2e_s), (begin, begin + length))
    assert begin <= found <= begin + length / 2 + 1e-9
