"""The labelled failures of cases.yaml, and the action that a diagnosis comes to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml

from autotune.engines.vllm.diagnosis import diagnose
from autotune.records.trial import Failure, Fault, Outcome, Phase

ACTIONS = ("learn", "retry", "abort", "lower_load", "unknown")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row of cases.yaml."""

    source: str
    kind: str
    split: str
    action: str
    log: str
    phase: Phase = Phase.LAUNCH
    exit_code: int = 1

    @property
    def scored(self) -> bool:
        """Whether lines of an engine stand behind it; an issue's own words are read, not scored."""
        return self.kind != "paraphrase"

    @property
    def told(self) -> str:
        """The action that the rules come to."""
        return action_of(diagnose(self.exit_code, self.phase, self.log))


def cases() -> list[Case]:
    """Every labelled failure."""
    rows = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text(encoding="utf-8"))
    return [Case(**{**row, "phase": Phase(row.get("phase", "launch"))}) for row in rows]


def action_of(failure: Failure) -> str:
    """What a study does after a failure; a fixed load is never lowered, so nothing is told to lower it."""
    if failure.outcome.teaches_infeasible:
        return "learn"
    if failure.outcome is Outcome.UNKNOWN:
        return "unknown"
    return {
        Fault.SETUP: "abort",
        Fault.ENVIRONMENT: "retry",
        Fault.CANDIDATE: "unknown",
        Fault.LOAD: "lower_load",
    }[failure.fault]


def is_false_lesson(case: Case) -> bool:
    """Whether what was not the candidate's fault would be learned as infeasible."""
    return case.told == "learn" and case.action in ("retry", "abort", "unknown")
