"""What a study comes to, so far or at its end: `summary.json`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.records.finals import Soak
from autotune.records.trial import SCHEMA_VERSION, Estimate, TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Gain:
    """Objective of the best over that of the reference, as a ratio > 1 when better, with its interval.

    From the finals' launches alone where there were any: then the interval covers what launches differ by, and holds
    with the stated confidence for all comparisons of the finals together. Else it covers the noise inside one launch
    of each; launches differ by more (docs/vocabulary.md).
    """

    value: float
    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Finalist:
    """One configuration in the finals, named by the trial that the search gave it. `objective` is the mean over its
    final launches with an interval for what launches differ by; `out` is why it may not win, `behind` whether it is
    known to be worse than the best."""

    trial: int
    launches: int
    objective: Estimate | None
    out: str | None = None
    behind: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalsSummary:
    """What the launches after the search came to. `ties` could not be told from the winner, which is the nearest of
    them to the reference. `error_rate` bounds the probability that the interval of any gain over the reference misses
    its truth; `launch_sd` is what launches of one configuration were seen to differ by (of a logarithm). `search_best`
    and `search_gain` are what the search by itself would have claimed: the luckiest of many, so optimistic."""

    winner: int | None
    ties: tuple[int, ...]
    reference: int | None
    finalists: tuple[Finalist, ...]
    rounds: int
    launches: int
    why: str
    error_rate: float
    launch_sd: float
    search_best: int | None
    search_gain: Gain | None
    soak_trial: int | None = None
    soak: Soak | None = None


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
class EngineResult:
    """What one of several engines came to, by numbers of trials; `gain` is over its own reference. `given_up` says why
    no more of it was tried, None of one that took part to the end."""

    name: str
    kind: str
    best: int | None
    reference: int | None
    objective: Estimate | None
    gain: Gain | None
    launched: int
    ruled_out: int
    given_up: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySummary:
    """Numbers of trials: `best` met every SLO, `nearest` is the one that misses least when none did, `reference` is
    what the gain is measured against. `confirmed` is False while an SLO of the best is unsettled, and always for a
    simulated study. `ruled_out_by`: launches saved, by what excluded the candidate. `launched` and `outcomes` are the
    search's; the launches after it are `finals`, None while they are not over or where there were none. `engines` are
    the results of each, in the study's order; () where there is only one. `prepare_s` is what trials waited for
    checkpoints to be prepared, a part of `wall_s` and of no trial's start-up.
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
    finals: FinalsSummary | None = None
    engines: tuple[EngineResult, ...] = ()
    prepare_s: float = 0.0

    def decided_by(self, trial: TrialRecord) -> Estimate | None:
        """Return the objective's figure of a trial: by the finals' launches where its configuration was in them."""
        entered = self.finals.finalists if self.finals else ()
        return next((f.objective for f in entered if f.trial == trial.number and f.objective), trial.objective)
