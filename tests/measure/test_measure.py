from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.measure import measure
from autotune.records.metrics import known_names
from autotune.records.spec import Bound, Slo
from autotune.records.trial import ClientHealth, LevelRecord, Measurement, RequestRecord, Violations
from tests.measure.making import WINDOW_S, level, request, steady


def measured(record: LevelRecord, *slos: Slo, **options: Any) -> Measurement:
    usual: dict[str, Any] = {"metrics": (), "slos": slos, "gpus": 1, "confidence": 0.95}
    return measure(record, **(usual | options))


def violations(requests: list[RequestRecord], metric: str, limit: float) -> Violations:
    (found,) = measured(level(requests), Slo(metric=metric, limit=limit)).violations
    return found


# --- what counts ----------------------------------------------------------------------------------------------------


def test_every_usual_metric_is_there() -> None:
    result = measured(level(steady()), extra={"startup_s": 12.0, "gpu_memory_bytes": 7e9})
    of_others = ("capacity_", "usd_", "energy_")
    assert set(result.values) == {name for name in known_names() if not name.startswith(of_others)}
    assert result.values["startup_s"].value == 12.0
    assert (result.requests, result.errors, result.duration_s, result.untrusted) == (240, 0, 60.0, ())


def test_named_metrics_are_added_and_unknown_ones_refused() -> None:
    result = measured(level(steady()), Slo(metric="ttft_ms.p75", limit=1), metrics=["e2e_ms.p99.9"])
    assert {"ttft_ms.p75", "e2e_ms.p99.9"} <= set(result.values)
    with pytest.raises(ValueError, match=r"ttft\.p99"):
        measured(level(steady()), metrics=["ttft.p99"])


def test_latency_counts_from_the_schedule_and_in_milliseconds() -> None:
    late = [replace(r, sent_s=r.start_s + 0.05) for r in steady()]
    values = measured(level(late)).values
    assert values["ttft_ms.p50"].value == pytest.approx(100)
    assert values["tpot_ms.p50"].value == pytest.approx(20)
    assert values["itl_ms.p50"].value == pytest.approx(20)
    assert values["e2e_ms.p50"].value == pytest.approx(140)
    closed = [replace(r, scheduled_s=None) for r in late]
    assert measured(level(closed)).values["ttft_ms.p50"].value == pytest.approx(50)


def test_warm_up_requests_outside_the_window_and_errors_stay_out_of_latency() -> None:
    slow = {"chunk_s": (5.0, 5.1)}
    outside = [
        request(900, WINDOW_S[0] - 0.001, **slow),
        request(901, WINDOW_S[1], **slow),
        request(902, 30.0, warmup=True, **slow),
        request(903, 30.0, error="HTTP 500", **slow),
        request(904, 30.0, error="cut", **slow),
    ]
    result = measured(level([*steady(), *outside]))
    assert result.values["ttft_ms.p99"].value == pytest.approx(100)
    assert (result.values["ttft_ms.p99"].n, result.requests, result.errors) == (240, 242, 1)


def test_chunks_of_several_tokens_give_a_gap_per_token() -> None:
    several = steady(chunk_s=(0.1, 0.2, 0.3), output_tokens=9, asked_output_tokens=9)
    values = measured(level(several)).values
    assert values["tpot_ms.mean"].value == pytest.approx(25)
    assert values["itl_ms.mean"].value == pytest.approx(25)
    assert values["itl_ms.mean"].n == 480


def test_a_single_token_has_no_tpot() -> None:
    values = measured(level(steady(chunk_s=(0.1,)))).values
    assert "ttft_ms.p50" in values
    assert not any(name.startswith(("tpot", "itl")) for name in values)


# --- rates ----------------------------------------------------------------------------------------------------------


def test_rates_count_what_arrives_inside_the_window() -> None:
    """One request across each edge: a third of the tokens of the first arrives inside, two thirds of the second."""
    first = request(0, WINDOW_S[0] - 1, chunk_s=(0.2, 0.4, 1.5), warmup=True)
    last = request(1, WINDOW_S[1] - 1, chunk_s=(0.2, 0.4, 1.5))
    values = measured(level([first, last])).values
    assert values["output_tok_per_s"].value == pytest.approx(3 / 60)
    assert values["total_tok_per_s"].value == pytest.approx((3 + 8) / 60)
    assert values["request_rps"].value == pytest.approx(1 / 60)


def test_rates_of_a_steady_stream_are_exact_and_divided_by_the_gpus() -> None:
    values = measured(level(steady()), gpus=2).values
    assert values["request_rps"].value == pytest.approx(4)
    assert values["output_tok_per_s"].value == pytest.approx(12)
    assert values["output_tok_per_s_per_gpu"].value == pytest.approx(6)
    assert values["goodput_rps_per_gpu"].value == pytest.approx(2)
    low, high = values["output_tok_per_s"].low, values["output_tok_per_s"].high
    assert low is not None
    assert high is not None
    assert low <= 12 <= high


def test_failed_answers_deliver_nothing_and_cut_ones_what_came() -> None:
    """A cut answer has no usage: its chunks count as many tokens as the others' do, here two."""
    good = request(0, chunk_s=(0.1, 0.2), output_tokens=4)
    cut = request(1, chunk_s=(0.1, 0.2), output_tokens=None, error="cut")
    bad = request(2, error="boom")
    assert measured(level([good, cut, bad])).values["output_tok_per_s"].value == pytest.approx(8 / 60)


def test_goodput_counts_requests_that_meet_every_slo() -> None:
    requests = [*steady(120), *steady(60, chunk_s=(0.3, 0.32)), *steady(60, chunk_s=(0.1, 0.2, 0.3))]
    both = (Slo(metric="ttft_ms.p99", limit=200), Slo(metric="itl_ms.p99", limit=50))
    floor = Slo(metric="request_rps", limit=100, bound=Bound.MIN)
    values = measured(level(requests), *both, floor).values
    assert values["goodput_rps"].value == pytest.approx(2)
    assert values["request_rps"].value == pytest.approx(4)


def test_an_empty_level_measures_nothing() -> None:
    result = measured(level([]))
    assert result.values == {}
    assert result.untrusted == ("too few requests: 0 succeeded in the window, 20 are the least",)


# --- errors, cuts, violations ---------------------------------------------------------------------------------------


def test_cut_requests_are_neither_success_nor_error() -> None:
    requests = [*steady(90), *(request(100 + i, 30.0 + i, error="boom") for i in range(10)), request(200, error="cut")]
    result = measured(level(requests), Slo(metric="error_ratio", limit=0.01))
    assert (result.values["error_ratio"].value, result.values["error_ratio"].n) == (0.1, 100)
    assert result.counters["cut"] == 1
    assert [(v.judged, v.violated) for v in result.violations] == [(100, 10)]


def test_failed_requests_violate_every_latency_slo() -> None:
    requests = [*steady(90), *(request(100 + i, 30.0 + i, error="boom") for i in range(10))]
    for metric in ("ttft_ms.p99", "tpot_ms.p99", "e2e_ms.p99", "itl_ms.p99"):
        found = violations(requests, metric, 1000)
        assert found.violated / found.judged == pytest.approx(0.1), metric


@pytest.mark.parametrize(
    ("metric", "chunks", "expected"),
    [
        ("ttft_ms.p99", (), (1, 1, 0)),  # 2 s without a token
        ("ttft_ms.p99", (0.3,), (1, 0, 0)),  # the token came in time
        ("e2e_ms.p99", (0.3,), (1, 1, 0)),  # it lasts 2 s already
        ("tpot_ms.p99", (), (0, 0, 1)),  # nothing is known
        ("tpot_ms.p99", (0.3,), (0, 0, 1)),  # 1.7 s for at most 99 more tokens may still be fast
        ("itl_ms.p99", (0.3, 0.4), (2, 1, 0)),  # one gap held, the open one is too long
    ],
)
def test_a_cut_request_violates_as_far_as_it_is_known(
    metric: str, chunks: tuple[float, ...], expected: tuple[int, int, int]
) -> None:
    cut = request(chunk_s=chunks, done_s=22.0, output_tokens=None, asked_output_tokens=100, error="cut")
    found = violations([cut], metric, 1000)
    assert (found.judged, found.violated, found.censored) == expected


def test_only_upper_bounds_on_quantiles_and_ratios_are_counted() -> None:
    others = (
        Slo(metric="ttft_ms.mean", limit=1),
        Slo(metric="request_rps", limit=1, bound=Bound.MIN),
        Slo(metric="e2e_ms.p50", limit=1, bound=Bound.MIN),
    )
    assert measured(level(steady()), *others).violations == ()


# --- doubts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"output_tokens": 2}, "another length than asked"),
        ({"prompt_tokens": 9}, "prompts have another length"),
        ({"output_tokens": None}, "no usage"),
    ],
)
def test_lengths_that_were_not_asked_for_are_doubted(fields: dict[str, Any], reason: str) -> None:
    (found,) = measured(level(steady(**fields))).untrusted
    assert reason in found


def test_a_dataset_asks_for_no_exact_lengths() -> None:
    assert measured(level(steady(asked_prompt_tokens=None, output_tokens=2))).untrusted == ()


def test_one_odd_answer_in_a_hundred_is_let_pass() -> None:
    requests = steady(200)
    odd = [replace(r, output_tokens=2) for r in requests[:2]]
    assert measured(level([*odd, *requests[2:]])).untrusted == ()
    assert measured(level([*odd, replace(requests[2], output_tokens=2), *requests[3:]])).untrusted != ()


@pytest.mark.parametrize(("lag_ms", "cpu", "count"), [(5.0, 0.7, 0), (5.1, 0.1, 1), (None, 0.71, 1), (None, None, 0)])
def test_a_busy_client_is_doubted(lag_ms: float | None, cpu: float | None, count: int) -> None:
    health = ClientHealth(send_lag_p99_ms=lag_ms, cpu_ratio=cpu)
    found = measured(level(steady(), client=health)).untrusted
    assert len(found) == count
    assert all(reason.startswith("client limited") for reason in found)


@pytest.mark.parametrize(("lag_ms", "doubted"), [(6.9, False), (7.1, True)])
def test_a_closed_loop_may_lag_by_a_twentieth_of_its_latency(lag_ms: float, doubted: bool) -> None:
    """E2E is 140 ms; a slot that stays idle for longer than 7 ms understates throughput by more than 5 %."""
    health = ClientHealth(send_lag_p99_ms=lag_ms, cpu_ratio=0.1)
    closed = level(steady(scheduled_s=None), client=health, offered_rps=None, concurrency=8)
    assert any("send lag" in reason for reason in measured(closed).untrusted) == doubted


def test_cuts_after_a_full_drain_are_doubted_but_not_those_of_a_stop() -> None:
    requests = [*steady(95), *(request(100 + i, 30.0 + i, error="cut") for i in range(5))]
    assert "5 of 100 requests were cut" in measured(level(requests)).untrusted[0]
    assert measured(level(requests, stopped="overload: x")).untrusted == ()


def test_errors_count_against_goodput() -> None:
    """A request that failed after a fast first token is no good one, and one that was cut is none yet."""
    requests = [*steady(180), *steady(40, error="HTTP 500"), *steady(20, error="cut")]
    values = measured(level(requests), Slo(metric="ttft_ms.p99", limit=200)).values
    assert values["goodput_rps"].value == pytest.approx(3)
    assert values["request_rps"].value == pytest.approx(3)
    assert values["error_ratio"].value == pytest.approx(40 / 220)


def test_a_p99_of_80_requests_has_no_upper_bound() -> None:
    assert measured(level(steady(80))).values["ttft_ms.p99"].high is None


def test_why_a_level_ended_early_is_told() -> None:
    assert measured(level(steady(), stopped="settled: x")).stopped == "settled: x"


def test_a_look_measures_the_same_but_only_what_is_asked() -> None:
    slos = (Slo(metric="ttft_ms.p99", limit=200), Slo(metric="error_ratio", limit=0.1))
    whole = measured(level(steady()), *slos, metrics=["goodput_rps_per_gpu"])
    look = measured(level(steady()), *slos, metrics=["goodput_rps_per_gpu"], usual=False)
    assert {"ttft_ms.p99", "error_ratio", "goodput_rps_per_gpu", "request_rps", "e2e_ms.mean"} <= look.values.keys()
    assert not {"itl_ms.p50", "output_tok_per_s"} & look.values.keys()
    assert look.values == {name: whole.values[name] for name in look.values}
    assert look.violations == whole.violations
