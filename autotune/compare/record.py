"""What `autotune compare` comes to; `--json` is a `Comparison`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.records.spec import Args
from autotune.records.trial import Estimate

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One trial of a run. `figures` by metric name, without those that it has none of; `launches` is how often just
    this configuration was launched and measured."""

    trial: int
    args: Args
    outcome: str
    figures: Mapping[str, Estimate]
    startup_kind: str | None
    launches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """A run, or one of its engines: what it ran on, how much was tried, its best and its reference. `parallelism` are
    the GPUs that one instance might be spread over; () where it was not searched.

    `shape` says what its workload is like (`workload_shape`). `cold_start_s` is its first start, caches empty; None
    where an earlier one had filled them. `prepare_s` is what was waited for checkpoints to be made. `given_up` says why
    no more of it was tried beside the other engines of its study.
    """

    run: str
    study: str
    engine: str
    version: str | None
    machine: str
    gpus: int
    simulated: bool
    finished: bool
    launched: int
    parallelism: tuple[int, ...]
    quality: str
    best: Configuration | None
    reference: Configuration | None
    shape: str = ""
    cold_start_s: float | None = None
    prepare_s: float = 0.0
    given_up: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One metric of the best of two contenders, of one workload. `winner` is a run, or None for a tie; `ratio` is first
    over second.

    `freedom` are the degrees of freedom that the noise between launches is known with; 0: it was assumed.
    """

    metric: str
    first: str
    second: str
    ratio: Estimate
    winner: str | None
    freedom: int
    shape: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Contenders in the order given, what separates them, and what to know before believing it."""

    schema_version: int = SCHEMA_VERSION
    objective: str
    confidence: float
    contenders: tuple[Contender, ...]
    differences: tuple[Difference, ...]
    allowed: tuple[str, ...]
    warnings: tuple[str, ...]
    verdict: tuple[str, ...]
