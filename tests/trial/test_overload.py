"""When figures say more of the load than of the candidate, and when they do not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.records.spec import ObjectiveSpec, Slo
from autotune.records.trial import ClientHealth, Fault, LevelRecord, Outcome, RequestRecord, TrialRecord
from autotune.trial.overload import lower_the_load
from tests.builders import objective, trial

JUDGES_ERRORS = objective(slos=(Slo(metric="error_ratio", limit=0.01),))


def level(*bad: tuple[int, str | None, int | None]) -> LevelRecord:
    """A hundred requests; (how many, error, status) of them are not well."""
    kinds = [(error, status) for count, error, status in bad for _ in range(count)]
    kinds += [(None, 200)] * (100 - len(kinds))
    requests = tuple(
        RequestRecord(index=index, scheduled_s=0.0, sent_s=0.0, asked_output_tokens=8, error=error, status=status)
        for index, (error, status) in enumerate(kinds)
    )
    client = ClientHealth(send_lag_p99_ms=0.1, cpu_ratio=0.1)
    return LevelRecord(
        plan_seed=1, offered_rps=1.0, concurrency=None, window_s=(0.0, 9.0), requests=requests, client=client
    )


def judged(asked: ObjectiveSpec, *levels: LevelRecord) -> TrialRecord:
    return lower_the_load(trial(1, value=5.0), asked, levels)


@pytest.mark.parametrize("error", ["too many open files", "cannot assign requested address"])
@pytest.mark.parametrize("asked", [objective(), JUDGES_ERRORS])
def test_requests_that_this_machine_could_not_send_are_no_figure_of_the_engine(
    error: str, asked: ObjectiveSpec
) -> None:
    record = judged(asked, level(), level((5, error, None)))
    assert record.outcome is Outcome.CLIENT_LIMITED
    assert not record.outcome.teaches_infeasible
    assert record.failure is not None
    assert record.failure.fault is Fault.LOAD
    assert record.failure.cause == f"5 of 200 requests could not be sent from this machine: {error}"
    assert record.failure.remedy.endswith(", or lower the load")


@pytest.mark.parametrize("status", [429, 503])
def test_refusals_are_judged_where_errors_are_and_too_much_load_where_they_are_not(status: int) -> None:
    refused = level((30, f"HTTP {status}", status))
    assert judged(JUDGES_ERRORS, refused).outcome is Outcome.OK
    record = judged(objective(), refused)
    assert record.outcome is Outcome.CLIENT_LIMITED
    assert record.failure is not None
    assert "30 of 100 requests were refused" in record.failure.cause
    assert "error_ratio" in record.failure.remedy


@pytest.mark.parametrize(
    "bad", [(1, "too many open files", None), (30, "connection reset by peer", None), (30, "x", 500)]
)
def test_a_single_one_and_the_engines_own_errors_change_nothing(bad: tuple[int, str, int | None]) -> None:
    record = trial(1, value=5.0)
    assert lower_the_load(record, objective(), [level(bad)]) is record


def test_a_slow_client_gets_its_words_as_the_cause() -> None:
    limited = trial(1, value=5.0)
    assert limited.verdict is not None
    verdict = replace(limited.verdict, untrusted=("client limited: its core was 99% busy > 70%",))
    limited = replace(limited, outcome=Outcome.CLIENT_LIMITED, verdict=verdict)
    record = lower_the_load(limited, objective(), [level()])
    assert record.failure is not None
    assert record.failure.cause == "client limited: its core was 99% busy > 70%"
