"""The rules that say why a variant could not be made."""

from __future__ import annotations

import pytest

from autotune.engines.failures import Rule, knowledge_of
from autotune.engines.variants.diagnosis import READER, failed
from autotune.records.trial import Fault, Outcome, Phase

RULES = knowledge_of(READER.package).rules


@pytest.mark.parametrize("rule", RULES, ids=[rule.name for rule in RULES])
def test_each_example_is_known_by_its_own_rule(rule: Rule) -> None:
    for example in rule.examples:
        found = failed("w8", 1, f"Loading checkpoint shards: 100%\nTraceback (most recent call last):\n{example}\n")
        assert (found.outcome, found.fault, found.remedy) == (rule.outcome, rule.fault, rule.remedy), example
        assert found.phase is Phase.PREPARE


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        ("ValueError: bad scale\nsubprocess.CalledProcessError: died", "ValueError: bad scale (exit code 1)"),
        ("[Error] no such layer\nbye", "[Error] no such layer (exit code 1)"),
        ("it said nothing of use\n\n", "it said nothing of use (exit code 1)"),
        ("", "the log is empty (exit code 1)"),
    ],
)
def test_what_no_rule_knows_is_the_first_error_else_the_last_line_and_is_learned(log: str, cause: str) -> None:
    found = failed("w8", 1, log)
    assert found.cause == f"variant w8 could not be made: {cause}"
    assert (found.outcome, found.fault) == (Outcome.LAUNCH_FAILED, Fault.CANDIDATE)


def test_a_kill_from_outside_teaches_nothing() -> None:
    assert failed("w8", -9, "half way\n").fault is Fault.ENVIRONMENT


def test_a_crash_is_its_own() -> None:
    assert failed("w8", -11, "half way\n").fault is Fault.CANDIDATE
