from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.records.trial import RequestRecord
from autotune.slo import OverloadGuard, overload_guard
from autotune.slo.guard import overload_of
from tests.slo.making import at_most, objective

TTFT, TPOT = at_most("ttft_ms.p99", 500), at_most("tpot_ms.p90", 50)


@dataclass(frozen=True, kw_only=True)
class Now:
    elapsed_s: float
    phase: str = "window"
    waiting_first_token: int = 0
    oldest_wait_s: float = 0.0
    completions_5s: int = 50


def answer(
    done_s: float, *, ttft_s: float = 0.1, tpot_s: float = 0.01, error: str | None = None, warmup: bool = False
) -> RequestRecord:
    last = done_s
    first = last - 9 * tpot_s
    return RequestRecord(
        index=0,
        scheduled_s=first - ttft_s,
        sent_s=first - ttft_s,
        chunk_s=(first, last),
        done_s=done_s,
        output_tokens=10,
        asked_output_tokens=10,
        error=error,
        warmup=warmup,
    )


def queue_from(guard: OverloadGuard, start_s: float, seconds: float, waiting: int = 20) -> list[str | None]:
    """Asked twice a second; 10 requests end each second, so 20 waiting are two seconds of work, 4 x the limit."""
    steps = int(seconds * 2) + 1
    return [guard(Now(elapsed_s=start_s + i / 2, waiting_first_token=waiting)) for i in range(steps)]


def test_a_queue_that_lasts_stops_the_level() -> None:
    answers = queue_from(overload_guard(objective(TTFT)), 10, 5)
    assert answers[:-1] == [None] * 10
    assert answers[-1] == "overload: ttft_ms.p99: 20 requests wait for their first token, 2.0 s of work"


def test_a_queue_that_clears_starts_the_clock_anew() -> None:
    guard = overload_guard(objective(TTFT))
    queue_from(guard, 10, 4)
    assert guard(Now(elapsed_s=14.5, waiting_first_token=10)) is None  # one second of work: twice the limit, not more
    assert queue_from(guard, 15, 4.5) == [None] * 10


def test_when_nothing_ends_the_oldest_wait_counts() -> None:
    guard = overload_guard(objective(TTFT))
    stuck = [Now(elapsed_s=t, waiting_first_token=1, oldest_wait_s=t, completions_5s=0) for t in (2.0, 4.0, 7.0)]
    assert [guard(now) is not None for now in stuck] == [False, False, True]


def test_warm_up_drain_and_objectives_without_a_ttft_are_left_alone() -> None:
    for phase in ("warmup", "drain"):
        guard = overload_guard(objective(TTFT))
        assert all(guard(Now(elapsed_s=t, phase=phase, waiting_first_token=500)) is None for t in (1.0, 10.0))
    guard = overload_guard(objective(TPOT))
    assert all(guard(Now(elapsed_s=t, waiting_first_token=500)) is None for t in (1.0, 10.0))


def test_slow_tokens_stop_the_level_once_ten_answers_show_it() -> None:
    guard = overload_guard(objective(TPOT))
    for _ in range(9):
        guard.record(answer(19, tpot_s=0.06))
    assert guard(Now(elapsed_s=20)) is None
    guard.record(answer(19, tpot_s=0.06))
    assert guard(Now(elapsed_s=20)) == "overload: tpot_ms.p90: mean of the last 10 s 60 ms, the limit is 50 ms"


def test_slow_tokens_of_old_do_not_count() -> None:
    guard = overload_guard(objective(TPOT))
    for _ in range(20):
        guard.record(answer(9.9, tpot_s=0.06))
    assert guard(Now(elapsed_s=20)) is None


def test_violations_beyond_three_times_the_allowed_stop_the_level() -> None:
    """1,000 requests may violate a p99 ten times; thirty are allowed to happen, the next is not."""
    guard = overload_guard(objective(TTFT), planned=1000)
    for i in range(30):
        guard.record(answer(10, ttft_s=0.6, error="boom" if i % 2 else None))
        guard.record(answer(10, ttft_s=0.4))
        guard.record(answer(10, ttft_s=0.6, warmup=True))
        guard.record(answer(10, ttft_s=0.6, error="cut"))
    assert guard(Now(elapsed_s=20)) is None
    guard.record(answer(10, ttft_s=0.6))
    assert guard(Now(elapsed_s=20)) == "overload: ttft_ms.p99: 31 violations already, of about 1000 requests in all"


def test_ten_violations_are_always_let_pass() -> None:
    guard = overload_guard(objective(TTFT), planned=20)
    for _ in range(10):
        guard.record(answer(10, ttft_s=0.6))
    assert guard(Now(elapsed_s=20)) is None
    guard.record(answer(10, ttft_s=0.6))
    assert guard(Now(elapsed_s=20)) is not None


def test_the_reason_is_read_back_for_its_metric_only() -> None:
    reason = queue_from(overload_guard(objective(TTFT)), 10, 5)[-1]
    assert overload_of(reason, "ttft_ms.p99") == reason
    assert overload_of(reason, "tpot_ms.p90") is None
    assert overload_of("out of time", "ttft_ms.p99") is None
    assert overload_of(None, "ttft_ms.p99") is None


def waiting(elapsed_s: float, oldest_wait_s: float) -> Now:
    return Now(elapsed_s=elapsed_s, waiting_first_token=1, oldest_wait_s=oldest_wait_s)


def test_a_request_that_waits_for_longer_than_the_limit_violates_before_it_ends() -> None:
    guard = overload_guard(objective(TTFT), planned=20)
    assert guard(waiting(10, 0)) is None
    for i in range(10):
        guard.record(answer(11 + i / 10, ttft_s=0.6))
    assert guard(waiting(20, 0.5)) is None
    assert guard(waiting(20.1, 0.6)) == "overload: ttft_ms.p99: 11 violations already, of about 20 requests in all"


def test_a_request_that_waited_too_long_counts_once() -> None:
    """Seen in several reports while it waits, then by its record."""
    guard = overload_guard(objective(TTFT), planned=20)
    assert guard(waiting(10, 0)) is None
    for i in range(9):
        guard.record(answer(11 + i / 10, ttft_s=0.6))
    assert [guard(waiting(20 + wait, wait)) for wait in (0.6, 0.7, 0.8)] == [None] * 3
    guard.record(replace(answer(21), scheduled_s=20.0))
    assert guard(waiting(22, 0)) is None
    assert guard(waiting(23, 0.6)) is not None


def test_a_wait_that_began_in_the_warm_up_is_none_of_the_window() -> None:
    guard = overload_guard(objective(TTFT), planned=20)
    for i in range(10):
        guard.record(answer(11 + i / 10, ttft_s=0.6))
    assert guard(waiting(10, 3)) is None
