"""What is asked and what comes out, without a server: loads, exit codes, pairs, words at 80 columns, the live view."""

from __future__ import annotations

import io
import math
import statistics
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from autotune.bench.aa import noise_of
from autotune.bench.asked import Load, objective_of
from autotune.bench.record import BenchRecord, Compared, CrossCheck
from autotune.bench.run import Measured, without_key
from autotune.bench.show import headline, render
from autotune.bench.view import LiveView
from autotune.errors import ExitCode, InputError
from autotune.load import LevelPhase, Progress
from autotune.records.spec import CapacitySpec, LoadSpec
from autotune.records.trial import (
    Capacity,
    ClientHealth,
    Diagnosis,
    Estimate,
    Failure,
    Fault,
    LevelRecord,
    Measurement,
    Outcome,
    Phase,
    RequestRecord,
)
from tests import builders
from tests.runs import HOSTILE


def measurement(**values: float) -> Measurement:
    estimates = {
        name.replace("__", "."): Estimate(value=value, low=value * 0.9, high=value * 1.1, n=100)
        for name, value in values.items()
    }
    return Measurement(
        offered_rps=None, concurrency=8, duration_s=10, requests=100, errors=0, values=estimates, notes=(HOSTILE,)
    )


def record(**changes: Any) -> BenchRecord:
    fields: dict[str, Any] = {
        "url": "http://h:8000/v1",
        "model": "m",
        "simulated": False,
        "started_utc": "2026-01-01T00:00:00+00:00",
        "wall_s": 12.0,
        "load_s": 11.0,
        "seed": 1,
        "gpus": 1,
        "objective": builders.objective(),
        "outcome": Outcome.OK,
        "verdict": builders.verdict("pass"),
        "value": Estimate(value=312.0, low=295.0, high=330.0, n=1000),
        "measurements": (measurement(output_tok_per_s=312.0, ttft_ms__p90=80.0, error_ratio=0.0),),
    }
    return BenchRecord(**(fields | changes))


def shown(found: BenchRecord, width: int = 80) -> str:
    file = io.StringIO()
    Console(file=file, width=width).print(render(found))
    return file.getvalue()


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_an_objectives_own_load_holds_unless_changed() -> None:
    assert objective_of("chat", Load()).load == objective_of(None, Load()).load
    changed = objective_of("chat", Load(rate_rps=3.0, duration_s=7.0, repeats=2)).load
    assert (changed.poisson_rps, changed.concurrency, changed.duration_s, changed.repeats) == (3.0, None, 7.0, 2)
    assert objective_of("chat", Load(concurrency=5)).load.concurrency == 5
    assert objective_of("chat", Load(capacity=True)).load.capacity == CapacitySpec()
    assert objective_of("chat", Load(aa=6)).load.repeats == 6


@pytest.mark.parametrize(
    "load", [Load(rate_rps=float("nan")), Load(concurrency=0), Load(duration_s=float("inf")), Load(repeats=-1)]
)
def test_numbers_that_make_no_load_are_refused(load: Load) -> None:
    with pytest.raises(InputError, match="above 0"):
        objective_of("chat", load)


# --- what comes out ---------------------------------------------------------------------------------------------------

FAILURE = Failure(
    outcome=Outcome.ENVIRONMENT, fault=Fault.ENVIRONMENT, phase=Phase.LOAD, cause="gone\nTraceback", remedy="start it"
)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ExitCode.OK),
        ({"outcome": Outcome.SLO_MISS}, ExitCode.NOTHING_FEASIBLE),
        ({"outcome": Outcome.UNSURE}, ExitCode.NOTHING_FEASIBLE),
        ({"outcome": Outcome.CLIENT_LIMITED, "failure": FAILURE}, ExitCode.ENVIRONMENT),
        ({"outcome": Outcome.ENVIRONMENT, "failure": FAILURE}, ExitCode.ENVIRONMENT),
        ({"outcome": Outcome.BAD_CONFIG, "failure": FAILURE}, ExitCode.ENVIRONMENT),
        ({"interrupted": True}, ExitCode.INTERRUPTED),
        ({"interrupted": True, "failure": FAILURE}, ExitCode.INTERRUPTED),
    ],
)
def test_the_exit_code_tells_what_came_of_it(changes: dict[str, Any], code: ExitCode) -> None:
    assert record(**changes).exit_code is code


def test_every_outcome_has_a_headline() -> None:
    for outcome in Outcome:
        failure = None if outcome.measured else replace(FAILURE, outcome=outcome)
        assert headline(record(outcome=outcome, failure=failure))
    assert headline(record(verdict=None)).startswith("Measured: 312 output tok/s")
    assert headline(record(failure=FAILURE)) == "Failed: gone …; start it"


def test_everything_fits_80_columns_and_nothing_hostile_reaches_the_terminal() -> None:
    found = record(
        model=HOSTILE,
        diagnosis=Diagnosis(limit="queueing", evidence=HOSTILE, parameters=("max_num_seqs",)),
        capacity=Capacity(
            of="rps", value=Estimate(value=9.0, low=8.5, high=9.5, n=10), method="levels", levels=5, load_s=90
        ),
        cross_check=CrossCheck(
            tool="vllm-bench",
            version=HOSTILE,
            wall_s=31.0,
            requests=100,
            failed=1,
            window_s=(1.0, 9.0),
            compared=(Compared(metric="output_tok_per_s", ours=300.0, said=285.0, measured=None),),
            differences=("by definition",),
        ),
    )
    text = shown(found)
    assert max(map(len, text.splitlines())) <= 80
    assert not {"\x1b", "\u202e"} & set(text)
    for part in ("0.950", "1 of them failed", "9 requests/s (8.5…9.5)", "max_num_seqs"):
        assert part in text, text


def test_levels_are_paired_in_order_and_an_odd_one_only_adds_to_the_noise() -> None:
    levels = [measurement(output_tok_per_s=value, ttft_ms__p90=0.0) for value in (100.0, 110.0, 90.0, 90.0, 100.0)]
    (found,) = noise_of(levels, builders.objective())
    assert found.metric == "output_tok_per_s"
    assert [(pair.levels, pair.ratio) for pair in found.pairs] == [((1, 2), 1.1), ((3, 4), 1.0)]
    logs = [math.log(value) for value in (100.0, 110.0, 90.0, 90.0, 100.0)]
    assert found.within == pytest.approx(statistics.stdev(logs))
    assert found.tie_ratio == pytest.approx(math.exp(2.776 * statistics.stdev(logs) * math.sqrt(2)), rel=1e-3)


def test_equal_levels_are_a_tie_at_any_ratio_but_one() -> None:
    (found,) = noise_of([measurement(output_tok_per_s=100.0)] * 4, builders.objective())
    assert (found.within, found.tie_ratio) == (0.0, 1.0)
    assert "a tie" in shown(record(noise=(found,)))


def test_a_key_that_a_server_repeats_in_an_error_reaches_no_file() -> None:
    request = RequestRecord(
        index=0, scheduled_s=None, sent_s=0.0, asked_output_tokens=1, error="bad key sk-very-secret"
    )
    level = LevelRecord(
        plan_seed=1,
        offered_rps=None,
        concurrency=1,
        window_s=(0.0, 1.0),
        requests=(request,),
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=None),
    )
    failure = replace(FAILURE, cause="bad key sk-very-secret")
    found = without_key(Measured(record=record(failure=failure), levels=(level,)), "sk-very-secret")
    assert "sk-very-secret" not in repr(found)
    assert "<redacted>" in repr(found.levels)


@pytest.mark.parametrize("key", ["x", "null", "EMPTY"])
def test_a_stand_in_for_a_key_does_not_garble_the_record(key: str) -> None:
    found = Measured(record=record(failure=FAILURE), levels=())
    assert without_key(found, key) == found


# --- the live view ----------------------------------------------------------------------------------------------------


def progress(elapsed_s: float, tokens: int, errors: int = 0) -> Progress:
    return Progress(
        elapsed_s=elapsed_s,
        phase=LevelPhase.WINDOW,
        sent=10,
        done=6,
        errors=errors,
        in_flight=4,
        waiting_first_token=0,
        oldest_wait_s=0.0,
        tokens=tokens,
        completions_5s=5,
    )


def lines(load: LoadSpec, seen: Sequence[Progress | str], *, terminal: bool = False) -> list[str]:
    file, now = io.StringIO(), iter(range(0, 1000, 6))
    console = Console(file=file, force_terminal=terminal, width=80)
    with LiveView(load, "opening", console=console, environ={}, clock=lambda: float(next(now))) as view:
        for each in seen:
            if isinstance(each, str):
                view.phase(each)
            else:
                view.progress(each)
        if terminal:
            shown = io.StringIO()
            Console(file=shown, width=80).print(view.render())
            return shown.getvalue().splitlines()
    return file.getvalue().splitlines()


def test_without_a_terminal_the_view_says_phases_and_now_and_then_how_it_goes() -> None:
    said = lines(LoadSpec(concurrency=4, duration_s=10, warmup_s=0), ["measuring", progress(1, 0), progress(3, 400, 2)])
    assert said == ["opening", "measuring", "measuring 3 of 10 s · 6 done · 4 in flight · 200 tok/s · 2 failed"]


def test_a_clock_that_starts_again_is_the_next_level() -> None:
    load = LoadSpec(concurrency=4, duration_s=10, warmup_s=0, repeats=3)
    said = lines(load, ["measuring", progress(1, 0), progress(9, 400), progress(2, 10)], terminal=True)
    assert said[-1].startswith("measuring level 2 of 3 2 of 10 s")


def test_hostile_text_of_a_phase_is_made_plain() -> None:
    assert "\x1b" not in "".join(lines(LoadSpec(concurrency=1), [HOSTILE]))
