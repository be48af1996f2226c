"""What a runtime says is the user's or the machine's fault, never the candidate's, and comes with what to do."""

from __future__ import annotations

import pytest

from autotune.engines.containers.failures import killed_for_memory, knowledge, not_started
from autotune.records.spec import ContainerSpec
from autotune.records.trial import Fault, Phase

CONTAINER = ContainerSpec(runtime="podman", image="org/image:1")
EXAMPLES = [(rule, example) for rule in knowledge().rules for example in rule.examples]


@pytest.mark.parametrize(("rule", "example"), EXAMPLES, ids=[f"{rule.name}" for rule, _ in EXAMPLES])
def test_the_examples_are_known_by_their_own_rule(rule: object, example: str) -> None:
    first = next(known for known in knowledge().rules if known.pattern.search(example))
    assert first is rule


@pytest.mark.parametrize("code", [1, 125, 126, 127, None])
def test_what_no_rule_knows_stops_the_study_with_what_the_client_said(code: int | None) -> None:
    failure = not_started(CONTAINER, "Error: something new\n", code)
    assert failure.fault is Fault.SETUP
    assert not failure.outcome.teaches_infeasible
    assert "something new" in failure.cause
    assert "org/image:1" in failure.remedy


def test_a_remedy_names_image_and_runtime() -> None:
    failure = not_started(CONTAINER, "Error: org/image:1: image not known", 125)
    assert failure.remedy.endswith("podman pull org/image:1")


def test_warnings_before_the_cause_are_passed_over() -> None:
    said = 'time="2026-12-01" level=warning msg="cgroups v1 are deprecated"\nError: org/image:1: image not known'
    assert "image not known" in not_started(CONTAINER, said, 125).cause


@pytest.mark.parametrize("phase", [Phase.LAUNCH, Phase.LOAD])
def test_a_container_killed_for_memory_teaches_nothing(phase: Phase) -> None:
    failure = killed_for_memory(phase)
    assert failure.fault is Fault.ENVIRONMENT
    assert not failure.outcome.teaches_infeasible
