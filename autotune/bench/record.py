"""What `autotune bench` comes to; `--json` and DIR/bench.json are this record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.errors import ExitCode
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import Capacity, Diagnosis, Estimate, Failure, Measurement, Outcome, Verdict

SCHEMA_VERSION = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A metric in two levels (their numbers, from 1), and the second over the first."""

    levels: tuple[int, int]
    first: float
    second: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """How far equal levels of one launch differ in a metric: `within` is the standard deviation of its logarithm, and
    two levels whose ratio is below `tie_ratio` (either way) can't be told apart. What launches differ by comes on top.
    """

    metric: str
    within: float
    tie_ratio: float
    pairs: tuple[Pair, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One metric as both tools have it. `said` is the other tool's own figure, by its own definition; `measured` is
    ours, made of the other tool's requests. None where the tool doesn't tell enough."""

    metric: str
    ours: float
    said: float | None
    measured: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossCheck:
    """The same level by another tool: how many requests it sent and failed, what its window was on its own clock, and
    where its definitions differ from ours."""

    tool: str
    version: str | None
    wall_s: float
    requests: int
    failed: int
    window_s: tuple[float, float]
    compared: tuple[Compared, ...]
    differences: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchRecord:
    """One measurement of a running server. `objective` is what was really asked for, the options of the command line
    included; `value` is its metric. `interrupted`: ended by the user, so that the figures are of what came until then.
    """

    schema_version: int = SCHEMA_VERSION
    url: str
    model: str
    versions: Mapping[str, str | None] = field(default_factory=dict)
    simulated: bool
    started_utc: str
    wall_s: float
    load_s: float
    seed: int
    gpus: int
    objective: ObjectiveSpec
    outcome: Outcome
    interrupted: bool = False
    failure: Failure | None = None
    verdict: Verdict | None = None
    value: Estimate | None = None
    measurements: tuple[Measurement, ...] = ()
    capacity: Capacity | None = None
    diagnosis: Diagnosis | None = None
    resolved: Mapping[str, object] = field(default_factory=dict)
    noise: tuple[Noise, ...] = ()
    cross_check: CrossCheck | None = None

    @property
    def exit_code(self) -> ExitCode:
        """What the command ends with: 130 interrupted, 4 it could not be measured, 3 not met or unsure, 0."""
        if self.interrupted:
            return ExitCode.INTERRUPTED
        codes = {
            Outcome.OK: ExitCode.OK,
            Outcome.SLO_MISS: ExitCode.NOTHING_FEASIBLE,
            Outcome.UNSURE: ExitCode.NOTHING_FEASIBLE,
        }
        return codes.get(self.outcome, ExitCode.ENVIRONMENT)
