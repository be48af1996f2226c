"""What a study comes to, so far or at its end: `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.records.trial import SCHEMA_VERSION, Estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Objective of the best over that of the reference, as a ratio > 1 when better, with its interval.

    The interval covers the noise inside one launch of each; launches differ by more (docs/vocabulary.md).
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudyCost:
    """What the launches of a study occupied: hours of machines (of GPUs, where those are paid for), and their price.

    `payback_tok`: output tokens after which the lower price of the best has paid that back; None where its price is not
    lower by more than the intervals of the two.
    """

    hours: float
    usd: float
    payback_tok: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Numbers of trials: `best` met every SLO, `nearest` is the one that misses least when none did, `reference` is
    what the gain is measured against. `confirmed` is False while an SLO of the best is unsettled, and always for a
    simulated study. `ruled_out_by`: launches saved, by what excluded the candidate.
    """

    schema_version: int = SCHEMA_VERSION
    study: str
    simulated: bool
    finished: bool
    stop_reason: str
    updated_utc: str
    best: int | None
    nearest: int | None
    reference: int | None
    gain: Gain | None
    objective: Estimate | None
    settled: bool
    confirmed: bool
    quality: str
    launched: int
    ruled_out: int
    outcomes: Mapping[str, int]
    wall_s: float
    warnings: tuple[str, ...] = ()
    versions: Mapping[str, str | None] = field(default_factory=dict)
    ruled_out_by: Mapping[str, int] = field(default_factory=dict)
    cost: StudyCost | None = None
