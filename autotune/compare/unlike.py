"""What keeps two runs from being compared: they were asked different things, or ran on different machines."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.records.spec import EngineKind, SimulateSpec, StudySpec
from autotune.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """One contender as it was read: its name (of the run on the command line, of one of its engines after it), the
    study of that engine alone, and the trials of it."""

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


TOKENIZER = ("tokenizer", "tokenizer_mode", "tokenizer_revision")
WEIGHTS = ("revision", "load_format", "hf_overrides")
"""Arguments, spelt alike by vLLM and TensorRT-LLM, that decide what is served."""

_ASPECTS: Mapping[str, Callable[[Read], object]] = {
    "objective": lambda run: (run.spec.objective.metric, run.spec.objective.direction.value),
    "SLOs": lambda run: sorted((s.metric, s.bound.value, s.limit) for s in run.spec.objective.slos),
    "workload": lambda run: run.spec.objective.workload,
    "load": lambda run: run.spec.objective.load,
    "confidence": lambda run: run.spec.objective.confidence,
    "seed": lambda run: run.spec.seed,
    "model": lambda run: run.spec.model,
    "tokenizer": lambda run: _fixed(run, TOKENIZER),
    "weights": lambda run: (_fixed(run, WEIGHTS), _revision(run)),
    "simulated": lambda run: run.simulated,
    "gpus": lambda run: f"{gpus_of(run)} x {machine_of(run)}",
}
"""What must be alike: the first that differs makes figures speak of different things."""

ALLOWABLE = ("seed", "model", "tokenizer", "weights", "gpus")
"""Differences that may be the very question: another sample of the traffic, a model by another name or in another
form, hardware."""


ACROSS_WORKLOADS = ("model", "tokenizer", "weights", "simulated", "gpus")
"""What must be alike even between runs of different workloads."""


def _fixed(run: Read, names: Sequence[str]) -> Mapping[str, object]:
    return {name: run.spec.engine.args[name] for name in names if name in run.spec.engine.args}


def _revision(run: Read) -> str | None:
    """The commit of the model that was measured; None where none is known, which is no difference."""
    return next((found for trial in run.trials if (found := trial.versions.get("model_revision"))), None)


def unlike(first: Read, second: Read, aspects: Sequence[str] = ()) -> Iterator[tuple[str, str]]:
    """Yield (aspect, sentence) for everything in which two runs are not alike; `aspects`: of these alone."""
    endpoint = EngineKind.ENDPOINT in _kinds(first, second)
    for aspect in aspects or _ASPECTS:
        one, other = (_ASPECTS[aspect](run) for run in (first, second))
        unknown = aspect == "weights" and None in (_revision(first), _revision(second))
        if unknown:
            one, other = (_fixed(run, WEIGHTS) for run in (first, second))
        if one == other or (endpoint and aspect in ("gpus", "tokenizer", "weights")):
            continue
        yield aspect, f"{aspect}: {first.name} has {_shown(one)}, {second.name} {_shown(other)}"


def _kinds(*runs: Read) -> set[EngineKind]:
    return {run.spec.engine.kind for run in runs}


def _shown(value: object) -> str:
    text = str(value)
    return text if len(text) <= 200 else f"{text[:197]}..."
