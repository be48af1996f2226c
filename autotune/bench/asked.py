"""What the user asks of `autotune bench`, as the study that the stages below know."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.records.spec import (
    CapacitySpec,
    EngineKind,
    EngineSpec,
    LoadSpec,
    ObjectiveSpec,
    SpaceSpec,
    StudySpec,
)
from autotune.study import load_objective

DEFAULT_OBJECTIVE = "chat"


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What the command line changes of an objective's load; None keeps what the objective says. `aa` are repeats too,
    to be compared with one another."""

    rate_rps: float | None = None
    concurrency: int | None = None
    capacity: bool = False
    duration_s: float | None = None
    warmup_s: float | None = None
    repeats: int | None = None
    aa: int | None = None

    @property
    def lasts(self) -> bool:
        """Whether the user said how long or how often: then it is not for us to end a level before."""
        return not (self.duration_s is None and self.repeats is None and self.aa is None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """One run of the command: with what objective. `gpus` divides per-GPU figures. `early`: a level ends once its
    verdict is settled; else it lasts as long as it says, for figures as exact as that gives. `aa`: compare the levels.
    """

    objective: ObjectiveSpec
    seed: int = 1
    gpus: int = 1
    early: bool = True
    aa: bool = False

    def study(self, model: str) -> StudySpec:
        """The study of one configuration, the one that runs: nothing is searched."""
        return StudySpec(
            name="bench",
            model=model,
            engine=EngineSpec(kind=EngineKind.ENDPOINT),
            search_space=SpaceSpec(name="none", engine=EngineKind.ENDPOINT, parameters=()),
            objective=self.objective,
            seed=self.seed,
        )


def objective_of(reference: str | None, change: Load) -> ObjectiveSpec:
    """Return the objective that is shipped or lies in the file `reference`, its load changed as asked.

    Raises InputError for an objective that can't be read, or for loads that exclude each other.
    """
    objective = load_objective(reference or DEFAULT_OBJECTIVE)
    return replace(objective, load=_changed(objective.load, change))


def _changed(load: LoadSpec, change: Load) -> LoadSpec:
    chosen = [change.rate_rps is not None, change.concurrency is not None, change.capacity]
    if sum(chosen) > 1:
        raise InputError("--rate, --concurrency and --capacity exclude each other", "give one of them")
    _check(change)
    level = replace(
        load,
        duration_s=load.duration_s if change.duration_s is None else change.duration_s,
        warmup_s=load.warmup_s if change.warmup_s is None else change.warmup_s,
        repeats=change.aa or change.repeats or load.repeats,
    )
    if not any(chosen):
        return level
    capacity = (load.capacity or CapacitySpec()) if change.capacity else None
    return LoadSpec(  # what arrives in another way is left out
        poisson_rps=change.rate_rps,
        concurrency=change.concurrency,
        capacity=capacity,
        duration_s=level.duration_s,
        warmup_s=level.warmup_s,
        max_requests=level.max_requests,
        repeats=level.repeats,
    )


def _check(change: Load) -> None:
    numbers = {
        "--rate": change.rate_rps,
        "--concurrency": change.concurrency,
        "--duration": change.duration_s,
        "--repeats": change.repeats,
    }
    if change.aa is not None and (change.repeats is not None or change.capacity):
        raise InputError("--aa repeats one level: it excludes --repeats and --capacity", "leave them out")
    if change.aa is not None and change.aa < 2:
        raise InputError(f"--aa compares pairs of levels, {change.aa} is too few", "give an even number, as 6")
    wrong = [name for name, value in numbers.items() if value is not None and not 0 < value < float("inf")]
    if wrong:
        raise InputError(f"{wrong[0]} must be above 0, got {numbers[wrong[0]]:g}", "give a number above 0")
