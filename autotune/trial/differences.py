"""What a configuration has other than the reference: for people, and to break ties."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.records.trial import Candidate, Outcome, TrialRecord
from autotune.records.variants import CHECKPOINT


def differences(trial: Candidate | TrialRecord, reference: TrialRecord | None) -> dict[str, Any]:
    """Return the arguments of `trial` that differ from what the reference ran with, by name (nested ones dotted).

    What the reference ran with is what it was given, else what its engine said it resolved, else what the engine's
    documentation gives. An argument that only the reference was given has the value None here: the engine's default.
    """
    ours = _checkpoint_of(trial) | flatten(trial.args)
    if reference is None:
        return ours
    refused = isinstance(trial, TrialRecord) and trial.outcome is Outcome.RULED_OUT  # tells only what was proposed
    theirs = flatten(reference.args)
    ran_with = {**flatten(reference.defaults), **flatten(reference.resolved), **theirs}
    changed = {name: value for name, value in ours.items() if name not in ran_with or not same(ran_with[name], value)}
    return changed if refused else changed | {name: None for name in theirs if name not in ours}


def _checkpoint_of(trial: Candidate | TrialRecord) -> dict[str, Any]:
    """The variant that it loads, which is none of its arguments; the reference loads the study's own model."""
    chosen = trial.checkpoint
    if chosen is None:
        return {}
    return {CHECKPOINT: chosen if isinstance(chosen, str) else chosen.name}


def flatten(args: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested arguments under dotted names."""
    flat: dict[str, Any] = {}
    for name, value in args.items():
        if isinstance(value, Mapping) and value:
            flat |= flatten(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def same(one: object, other: object) -> bool:
    """Return whether two are equal to an engine: 0.9 and 0.90, None and "None", but not True and 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return one == other or str(one) == str(other)
