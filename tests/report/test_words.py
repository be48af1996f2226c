from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.records.spec import Bound
from autotune.records.trial import Estimate, Outcome, Role, Ruling, SloRuling
from autotune.report.words import (
    OUTCOME_MEANING,
    OUTCOME_WORDS,
    differing,
    duration,
    figure,
    metric_label,
    number_list,
    one_line,
    plain,
    plus_minus,
    slo_text,
)
from tests.runs import HOSTILE, trial


@pytest.mark.parametrize(
    ("value", "text"),
    [(312.4, "312"), (1240.0, "1240"), (1.314, "1.31"), (0.0123, "0.0123"), (0.9999, "1"), (0.0, "0"), (300.0, "300")],
)
def test_figures_have_three_digits_and_no_exponent(value: float, text: str) -> None:
    assert figure(value) == text


def test_figures_that_are_none_read_as_absent() -> None:
    assert [figure(None), figure(float("nan")), figure(float("inf"))] == ["-", "-", "-"]


def test_half_the_interval_follows_the_value() -> None:
    assert plus_minus(Estimate(value=312.0, low=295.0, high=331.0, n=9)) == "312 ±18"


def test_an_open_interval_promises_no_half_width() -> None:
    assert plus_minus(Estimate(value=312.0, low=295.0, high=None, n=9)) == "312"


def test_plain_text_has_nothing_that_moves_a_cursor() -> None:
    assert plain(HOSTILE).isprintable()
    assert plain("\ud800") == "\\ud800"


def test_the_telling_line_of_a_traceback_is_its_last() -> None:
    assert one_line("Traceback (most recent call last):\n  File x\nValueError: no") == "ValueError: no …"
    assert one_line("CUDA out of memory\nmore") == "CUDA out of memory …"
    assert one_line("CUDA out of memory") == "CUDA out of memory"


def test_metric_labels_read_like_the_field() -> None:
    names = ["ttft_ms.p99", "e2e_ms.mean", "output_tok_per_s_per_gpu", "error_ratio"]
    assert [metric_label(n) for n in names] == ["p99 TTFT ms", "mean E2E ms", "output tok/s/GPU", "error ratio"]


@pytest.mark.parametrize(
    ("bound", "value", "text"),
    [
        (Bound.MAX, 412.0, "ttft_ms.p99 412 ≤ 500 (400…430)"),
        (Bound.MAX, 640.0, "ttft_ms.p99 640 > 500 (400…430)"),
        (Bound.MIN, 640.0, "ttft_ms.p99 640 ≥ 500 (400…430)"),
        (Bound.MIN, 412.0, "ttft_ms.p99 412 < 500 (400…430)"),
    ],
)
def test_the_sign_of_an_slo_is_true_of_the_value(bound: Bound, value: float, text: str) -> None:
    figure_ = Estimate(value=value, low=400.0, high=430.0, n=9)
    ruling = SloRuling(
        metric="ttft_ms.p99", bound=bound, limit=500.0, estimate=figure_, excess=0.0, ruling=Ruling.UNSURE
    )
    assert slo_text(ruling) == text


def test_differences_name_what_changed_and_what_is_left_out() -> None:
    reference = trial(0, Outcome.OK, role=Role.REFERENCE)
    reference = replace(reference, args={"a": 1, "b": True, "c": {"d": "x"}}, resolved={"e": 5})
    other = replace(reference, args={"a": 2, "c": {"d": "y"}, "e": 5, "f": False})
    assert differing(other, reference) == ["a=2", "c.d=y", "f=false", "b=default"]


def test_true_is_not_one() -> None:
    reference = replace(trial(0, Outcome.OK), args={"a": 1})
    assert differing(replace(reference, args={"a": True}), reference) == ["a=true"]


def test_a_ruled_out_proposal_lacks_nothing() -> None:
    reference = replace(trial(0, Outcome.OK), args={"max_model_len": 8192})
    assert differing(replace(trial(1, Outcome.RULED_OUT), args={"a": 1}), reference) == ["a=1"]


def test_every_outcome_has_words_that_fit_the_column() -> None:
    assert set(OUTCOME_WORDS) == set(OUTCOME_MEANING) == set(Outcome)
    assert all(len(word) <= 11 for word in OUTCOME_WORDS.values())


def test_durations_and_lists() -> None:
    assert [duration(42), duration(185), duration(7620)] == ["42 s", "3 min 05 s", "2 h 07 min"]
    assert number_list([1, 2, 3, 4], shown=2) == "1, 2 and 2 more"
