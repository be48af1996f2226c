"""What happens after the search: launches that measure the best few again, and what a soak of the winner showed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.records.spec import BudgetSpec


class FinalStage(StrEnum):
    ROUND = "round"  # one launch each of finalists and reference
    SOAK = "soak"  # a long level of the winner


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalRun:
    """Why a trial was launched although its configuration had been: it measures trial `of` again.

    `round` counts from 1 within its `heat` (a second one is run by the next best when none of the first held); 0 for a
    soak. `after` is the last trial of the search before: once the search goes on, finals are run anew. `ended` is why
    the search had ended, under this `budget`.
    """

    of: int
    stage: FinalStage
    heat: int = 0
    round: int = 0
    after: int
    ended: str = ""
    budget: BudgetSpec = field(default_factory=BudgetSpec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trend:
    """By which share a figure changed from begin to end of a soak (a straight line through its slices), above 0 being
    more; `sure` when the line stands out of the scatter around it."""

    change_ratio: float
    sure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Shifted:
    """The winner under other load or lengths, measured in the launch of its soak. `name` says what was shifted;
    `objective` is None where it was not measured, `why` then says the reason."""

    name: str
    ruling: str | None = None
    objective: float | None = None
    missed: tuple[str, ...] = ()
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Soak:
    """What a long level showed. `failed` is why it counts against the configuration, None when it held.

    `trends` are by figure (`output_tok_per_s`, `ttft_ms.p50`, `tpot_ms.p50`, `gpu_memory_bytes`,
    `process_memory_bytes`), only of those that could be followed. `notes` are what deserves a look and is no failure.
    """

    duration_s: float
    load: str
    failed: str | None = None
    trends: Mapping[str, Trend] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    shifted: tuple[Shifted, ...] = ()
