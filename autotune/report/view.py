"""What a report is made from: one reading of a run, finished or not, with best, nearest and reference found."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.records.metrics import LATENCIES, parse_metric
from autotune.records.spec import StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import Candidate, Estimate, Role, TrialRecord
from autotune.report.words import leader
from autotune.trial.store import RunDirectory


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """A run as reports see it. `summary` is None before the first was written; then `best` is the leader so far."""

    path: Path
    spec: StudySpec
    trials: tuple[TrialRecord, ...]
    summary: StudySummary | None
    best: TrialRecord | None
    nearest: TrialRecord | None
    reference: TrialRecord | None

    @property
    def simulated(self) -> bool:
        """True when any part of the run was not a real engine."""
        return self.spec.simulated or any(trial.simulated for trial in self.trials)

    def reference_for(self, trial: TrialRecord | Candidate) -> TrialRecord | None:
        """What a trial is set beside: the reference, or of several engines that of its own."""
        return own_reference(self.trials, trial, self.reference)

    @property
    def confirmed(self) -> bool:
        """Whether the best may be deployed on the strength of this run."""
        return self.summary is not None and self.summary.confirmed and not self.simulated and self.best is not None


def read_view(run: RunDirectory) -> RunView:
    """Read a run. Raises InputError when it is no run, or a record of it can't be read."""
    spec = run.spec()
    summary = run.summary() if (run.path / "summary.json").exists() else None
    return make_view(run.path, spec, run.trials(), summary)


def make_view(
    path: Path, spec: StudySpec, trials: Sequence[TrialRecord], summary: StudySummary | None = None
) -> RunView:
    """Return the view of these records. What the summary names wins; without one the trials tell."""
    numbered = {trial.number: trial for trial in trials}
    named = (summary.best, summary.nearest, summary.reference) if summary else (None, None, None)
    best, nearest, reference = (None if number is None else numbered.get(number) for number in named)
    if summary is None:
        best = leader(trials, spec.objective.direction)
    return RunView(
        path=path,
        spec=spec,
        trials=tuple(trials),
        summary=summary,
        best=best,
        nearest=nearest,
        reference=reference or find_reference(trials),
    )


def find_reference(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """Return the latest reference trial that ran, else the first that was tried, else None."""
    references = [trial for trial in trials if trial.role is Role.REFERENCE]
    ran = [trial for trial in references if trial.outcome.measured]
    return ran[-1] if ran else next(iter(references), None)


def own_reference(
    trials: Sequence[TrialRecord], trial: TrialRecord | Candidate, reference: TrialRecord | None
) -> TrialRecord | None:
    """Return `reference` where it is of the trial's engine, else that engine's own."""
    if reference is not None and reference.engine == trial.engine:
        return reference
    return find_reference([other for other in trials if other.engine == trial.engine])


def metric_of(trial: TrialRecord, name: str) -> Estimate | None:
    """Return a trial's figure for a metric: as judged, else as measured (of several levels the median, no interval)."""
    for ruling in trial.verdict.slos if trial.verdict else ():
        if ruling.metric == name and ruling.estimate is not None:
            return ruling.estimate
    found = [level.values[name] for level in trial.measurements if name in level.values]
    if len(found) <= 1:
        return found[0] if found else None
    middle = statistics.median(estimate.value for estimate in found)
    return Estimate(value=middle, low=None, high=None, n=sum(estimate.n for estimate in found))


def side_metric(spec: StudySpec) -> str:
    """Return what to show beside the objective: the first latency with an SLO, else p99 TTFT.

    Beside an objective that is itself a latency it is the throughput of output tokens.
    """
    if is_latency(spec.objective.metric):
        return "output_tok_per_s"
    return next((slo.metric for slo in spec.objective.slos if is_latency(slo.metric)), "ttft_ms.p99")


def is_latency(name: str) -> bool:
    """Whether the metric is a latency of requests."""
    metric = parse_metric(name)
    return metric is not None and metric.base in LATENCIES


def failed(trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials that gave no measurement."""
    return [trial for trial in trials if not trial.outcome.measured]
