"""Deaths are classified by their first cause, never by the generic line at the end."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from autotune.engines.vllm.diagnosis import Rule, diagnose, knowledge, root_errors
from autotune.records.trial import Fault, Outcome, Phase

CORE = "(EngineCore pid=3497) ERROR 11-30 10:43:00 [core.py:1510] "
END = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}"

SEEN = yaml.safe_load(Path(__file__).with_name("seen_failures.yaml").read_text())


@pytest.mark.parametrize("seen", SEEN, ids=lambda seen: seen["name"])
def test_failures_seen_with_vllm(seen: dict[str, Any]) -> None:
    failure = diagnose(seen["exit_code"], Phase(seen["phase"]), seen["log"])
    assert (failure.outcome, failure.fault, failure.phase) == (seen["outcome"], seen["fault"], seen["phase"])
    assert seen["cause"] in failure.cause
    assert failure.remedy


@pytest.mark.parametrize("rule", knowledge().rules, ids=lambda rule: rule.name)
def test_every_rule_finds_its_own_examples_first(rule: Rule) -> None:
    assert rule.examples
    for example in rule.examples:
        assert diagnose(1, Phase.LAUNCH, f"{CORE}{example}\n{END}").remedy == rule.remedy


@pytest.mark.parametrize("rule", knowledge().rules, ids=lambda rule: rule.name)
def test_only_the_candidates_own_fault_teaches(rule: Rule) -> None:
    teaches = rule.outcome.teaches_infeasible or rule.under_load.teaches_infeasible
    assert teaches is (rule.fault is Fault.CANDIDATE)


@pytest.mark.parametrize(
    ("line", "launching", "loading"),
    [
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.", "oom_startup", "oom_load"),
        ("RuntimeError: CUDA error: out of memory", "oom_startup", "oom_load"),
        ("torch.AcceleratorError: CUDA error: an illegal memory access", "launch_failed", "crashed_under_load"),
    ],
)
def test_the_phase_decides_between_outcomes(line: str, launching: str, loading: str) -> None:
    assert diagnose(1, Phase.LAUNCH, line).outcome == launching
    assert diagnose(1, Phase.LOAD, line).outcome == loading


def test_what_no_rule_knows_keeps_its_first_error() -> None:
    failure = diagnose(1, Phase.LAUNCH, f"starting\n{CORE}KeyError: 'rope_scaling'\n{END}")
    assert failure.outcome is Outcome.UNKNOWN
    assert failure.cause.startswith("KeyError: 'rope_scaling'")


def test_a_death_without_an_error_keeps_the_last_line_and_the_code() -> None:
    assert diagnose(4, Phase.LAUNCH, "one\ntwo\n").cause == "two (exit code 4)"
    assert diagnose(None, Phase.LAUNCH, "").cause == "the log is empty"


def test_a_kill_from_outside_is_the_environments() -> None:
    failure = diagnose(-signal.SIGKILL, Phase.LOAD, "(APIServer pid=1) INFO 11-30 10:00:00 [a.py:1] all is well")
    assert failure.outcome is Outcome.ENVIRONMENT


def test_consequences_are_no_causes_and_a_dead_worker_is_the_last_of_them() -> None:
    died = "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
    text = f"{CORE}{died}\nValidationError: 1 validation error for X\n  Value error, a\n{CORE}ValueError: b\n{END}"
    assert list(root_errors(text)) == ["Value error, a", "ValueError: b", died]


def test_warnings_that_quote_errors_are_no_causes() -> None:
    text = (
        "(APIServer pid=1) WARNING 11-30 10:37:55 [a.py:255] This can cause errors like `OSError: Too many open files`"
    )
    assert list(root_errors(text)) == []
