"""What differs from the reference: against what it was given, else resolved, else documented."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.records.trial import Role
from autotune.trial.differences import differences
from tests.builders import trial

REFERENCE = replace(
    trial(0, role=Role.REFERENCE, args={"given": 1}),
    resolved={"given": 2, "resolved": 16, "none": None},
    defaults={"resolved": 32, "documented": "auto", "flag": True},
)


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ({"given": 1}, {}),
        ({"given": 2}, {"given": 2}),
        ({"given": 1, "resolved": 16}, {}),
        ({"given": 1, "resolved": 32}, {"resolved": 32}),
        ({"given": 1, "documented": "auto", "flag": True}, {}),
        ({"given": 1, "flag": 1}, {"flag": 1}),
        ({"given": 1, "none": "None"}, {}),
        ({"given": 1, "unheard": 5}, {"unheard": 5}),
        ({"given": 1, "nested": {"a": {"b": 2}}}, {"nested.a.b": 2}),
        ({}, {"given": None}),
    ],
)
def test_differences(args: dict[str, Any], expected: dict[str, Any]) -> None:
    assert differences(trial(1, args=args), REFERENCE) == expected


def test_without_a_reference_everything_differs() -> None:
    assert differences(trial(1, args={"a": 1}), None) == {"a": 1}
