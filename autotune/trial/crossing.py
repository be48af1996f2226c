"""Where levels of load alone put the capacity: each SLO's violations against the load, and the SLO crossed first."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from autotune.measure.samples import select
from autotune.measure.violations import count
from autotune.models.curve import Crossing, Guess, Point, crossing, evidence_against
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import LevelRecord
from autotune.slo.sequential import allowed_share

LEAST_INFLATION = 10.0
"""Violations near capacity come in bursts, D = 10 to 30; a short level without one shows a D that is too small."""

CONTRADICTED = 3.0  # of log-likelihood: a ratio of 20

SloPoint = tuple[str, Point]
"""An SLO's metric, and how often it was violated at one load."""


def points_of(objective: ObjectiveSpec, level: LevelRecord) -> list[SloPoint]:
    """The violations of every SLO that is judged by counts, where there was something to judge."""
    slos = [slo for slo in objective.slos if 0 < (allowed_share(slo) or 0.0) < 1]
    return [
        (
            slo.metric,
            Point(
                load=load_of(level),
                judged=counts.judged,
                violated=counts.violated,
                inflation=max(LEAST_INFLATION, counts.inflation),
                allowed=allowed_share(slo) or 0.0,
            ),
        )
        for slo, counts in zip(slos, count(select(level), slos), strict=True)
        if counts.judged
    ]


def first_crossing(points: Sequence[SloPoint], guess: Guess | None = None) -> Crossing | None:
    """The lowest load at which one of the SLOs is crossed; None when none could be judged."""
    found = [crossing(group, guess=guess) for group in _by_slo(points)]
    return min(found, key=lambda each: each.load, default=None)


def contradicts(points: Sequence[SloPoint], load: float) -> bool:
    """Whether the counts speak against a capacity: it is too high for one of the SLOs, or too low for all of them."""
    groups = _by_slo(points)
    found = [crossing(group) for group in groups]
    unlikely = [evidence_against(group, load) > CONTRADICTED for group in groups]
    too_high = [no and each.load < load for no, each in zip(unlikely, found, strict=True)]
    too_low = [no and each.load > load for no, each in zip(unlikely, found, strict=True)]
    return any(too_high) or (bool(too_low) and all(too_low))


def _by_slo(points: Sequence[SloPoint]) -> list[list[Point]]:
    groups = groupby(sorted(points, key=lambda each: each[0]), key=lambda each: each[0])
    return [[point for _, point in group] for _, group in groups]


def bracketed(points: Sequence[SloPoint]) -> bool:
    """Whether loads on both sides of the capacity were measured: one where an SLO was violated more often than it
    allows, and one where none was."""
    loads = {point.load for _, point in points}
    over = {point.load for _, point in points if point.violated > point.allowed * point.judged}
    return bool(over) and over != loads


def load_of(level: LevelRecord) -> float:
    """What a capacity search moves: the level's requests a second, or its clients."""
    return float(level.offered_rps or level.concurrency or 0.0)
