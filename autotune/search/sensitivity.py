"""How much the pick depends on each parameter: its measured neighbours, and how surely a parameter mattered at all.

A neighbour is a trial of the search that differs from the pick in few arguments, so that what it lost is theirs. The
share of importance is told with an interval from resampled trials (bootstrap percentiles, Efron & Tibshirani 1993).
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from autotune.records.spec import Direction, ObjectiveSpec
from autotune.records.trial import Outcome, TrialRecord
from autotune.trial.differences import differences

FAR = 2  # arguments in which a neighbour may differ
RESAMPLES = 100
TRIALS_READ = 6_000  # by all resamples together, of which there are 20 at least: each trial takes a millisecond
Shares = Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Neighbour:
    """What a trial near the pick cost: `ratio` is its objective over the pick's as measured by the search, below 1
    being worse in either direction; None where it gave none. `changed` is what it has other than the pick."""

    trial: int
    changed: Mapping[str, Any]
    outcome: Outcome
    ratio: float | None


def neighbours(
    records: Sequence[TrialRecord], pick: TrialRecord, objective: ObjectiveSpec, most: int = 8
) -> tuple[Neighbour, ...]:
    """Return the trials that differ from `pick` in one or two arguments, the nearest first."""
    found = []
    for record in records:
        changed = differences(record, pick) if record.final is None and record.number != pick.number else {}
        if 0 < len(changed) <= FAR and record.outcome is not Outcome.RULED_OUT:
            ratio = _ratio(record, pick, objective.direction)
            found.append(Neighbour(trial=record.number, changed=changed, outcome=record.outcome, ratio=ratio))
    return tuple(sorted(found, key=lambda each: (len(each.changed), each.trial))[:most])


def with_intervals(
    trials: Sequence[TrialRecord], shares_of: Callable[[Sequence[TrialRecord]], Shares | str], seed: int = 1
) -> dict[str, tuple[float, float, float]]:
    """Return (share, low, high) of each parameter: its share, and the middle 90 % of the shares that resampled trials
    give. Empty where the trials don't tell."""
    shares = shares_of(trials)
    if isinstance(shares, str):
        return {}
    rng = random.Random(seed)  # noqa: S311 - a bootstrap
    drawn: list[Shares] = []
    for _ in range(min(RESAMPLES, max(20, TRIALS_READ // len(trials)))):
        again = shares_of(rng.choices(trials, k=len(trials)))
        drawn += [] if isinstance(again, str) else [again]
    return {name: (share, *_middle([each.get(name, 0.0) for each in drawn], share)) for name, share in shares.items()}


def _middle(values: Sequence[float], otherwise: float) -> tuple[float, float]:
    if not values:
        return otherwise, otherwise
    ordered = sorted(values)
    cut = math.floor(0.05 * len(ordered))
    return ordered[cut], ordered[-1 - cut]


def _ratio(record: TrialRecord, pick: TrialRecord, direction: Direction) -> float | None:
    if record.objective is None or pick.objective is None or min(record.objective.value, pick.objective.value) <= 0:
        return None
    ratio = record.objective.value / pick.objective.value
    return ratio if direction is Direction.MAXIMIZE else 1 / ratio
