"""What keeps two runs from being compared: they were asked different things, or ran on different machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.records.spec import EngineKind, SimulateSpec, StudySpec
from autotune.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """A run as it was read: its name on the command line, its study and its trials."""

    name: str
    spec: StudySpec
    trials: Sequence[TrialRecord]

    @property
    def simulated(self) -> bool:
        """Whether any of it was not a real engine."""
        return self.spec.simulated or any(trial.simulated for trial in self.trials)


def gpus_of(run: Read) -> int:
    """Return what a run's per-GPU figures were divided by."""
    return next((trial.gpus for trial in run.trials if trial.gpus), 1)


def machine_of(run: Read) -> str:
    """Return the GPUs, or the CPU, that a run was measured on, as its records tell; an endpoint's is not known."""
    if run.spec.engine.kind is EngineKind.ENDPOINT:
        return "not known"
    if run.spec.simulated:
        return f"simulated {(run.spec.engine.simulate or SimulateSpec()).gpu}"
    versions = run.trials[-1].versions if run.trials else {}
    return versions.get("gpus") or versions.get("cpu") or "not known"


_ASPECTS: Mapping[str, Callable[[Read], object]] = {
    "objective": lambda run: (run.spec.objective.metric, run.spec.objective.direction.value),
    "SLOs": lambda run: sorted((s.metric, s.bound.value, s.limit) for s in run.spec.objective.slos),
    "workload": lambda run: run.spec.objective.workload,
    "load": lambda run: run.spec.objective.load,
    "confidence": lambda run: run.spec.objective.confidence,
    "seed": lambda run: run.spec.seed,
    "model": lambda run: run.spec.model,
    "simulated": lambda run: run.simulated,
    "gpus": lambda run: f"{gpus_of(run)} x {machine_of(run)}",
}
"""What must be alike: the first that differs makes figures speak of different things."""

ALLOWABLE = ("seed", "model", "gpus")
"""Differences that may be the very question: another sample of the traffic, a model by another name, hardware."""


def unlike(first: Read, second: Read) -> Iterator[tuple[str, str]]:
    """Yield (aspect, sentence) for everything in which two runs are not alike."""
    for aspect, look in _ASPECTS.items():
        one, other = look(first), look(second)
        if one == other or (aspect == "gpus" and EngineKind.ENDPOINT in _kinds(first, second)):
            continue
        yield aspect, f"{aspect}: {first.name} has {_shown(one)}, {second.name} {_shown(other)}"


def _kinds(*runs: Read) -> set[EngineKind]:
    return {run.spec.engine.kind for run in runs}


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
