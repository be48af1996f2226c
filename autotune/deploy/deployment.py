"""What every exporter is given: one measured trial of a run, and the few wishes of whoever exports it."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from autotune.deploy.evidence import BestFile, best_file
from autotune.engines.command import resolved_model
from autotune.errors import InputError
from autotune.records.spec import Args, EngineKind, ObjectiveSpec, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import TrialRecord
from autotune.search.picks import picked
from autotune.search.winner import gain
from autotune.trial.store import RunDirectory

_NAME_CHARS = 40  # a Kubernetes label takes 63; controllers append hashes to names


@dataclass(frozen=True, slots=True, kw_only=True)
class Fallback:
    """What a proxy turns to: `model` as LiteLLM names one (`provider/name`). `api_base` and the variable that holds the
    key are given for an endpoint; a provider has its own."""

    model: str
    api_base: str | None = None
    api_key_env: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Wishes. `image` instead of the one measured; `limits` makes the suggested limits part of the engine's arguments;
    `here` is for the machine that measured, whose paths then may be written."""

    image: str | None = None
    fallback: Fallback | None = None
    limits: bool = False
    here: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """One trial, ready to be written in any form. `engine` is the one whose parameters `best.engine.args` are; `model`
    is as it was launched; `startups_s` are the start-ups of the run's trials, `cold` whether one found empty caches."""

    best: BestFile
    spec: StudySpec
    trial: TrialRecord
    engine: EngineKind
    model: str
    reference: TrialRecord | None = None
    startups_s: tuple[float, ...] = ()
    cold: bool = False
    asked: Asked = field(default_factory=Asked)

    @property
    def args(self) -> Args:
        """The arguments measured."""
        return self.best.engine.args

    @property
    def name(self) -> str:
        """The study's name as Kubernetes and compose take one (RFC 1123)."""
        text = re.sub(r"[^a-z0-9]+", "-", self.best.study.lower())[:_NAME_CHARS].strip("-")
        return text if text[:1].isalpha() else f"autotune-{text}".rstrip("-")

    @property
    def model_folder(self) -> str | None:
        """The folder to mount for a model that is a path; None for one from the hub. Files of a hub's cache are links
        out of their snapshot, so the whole of its repository goes along."""
        if not self.model.startswith("/"):
            return None
        parent = posixpath.dirname(self.model)
        return posixpath.dirname(parent) if posixpath.basename(parent) == "snapshots" else self.model

    @property
    def gpus(self) -> int:
        """The GPUs that one instance of these arguments occupies; 0 where none was there when it was measured."""
        on_cpu = not self.best.simulated and "gpus" in self.trial.versions and self.trial.versions["gpus"] is None
        return 0 if on_cpu else _world_size(self.args)

    @property
    def extra_args(self) -> Args:
        """The suggested limits as arguments of the engine, without those that were measured with a value of their own.
        Never part of what was measured."""
        limits = self.best.suggested_limits
        return {} if limits is None else {k: v for k, v in limits.args.items() if k not in self.args}


_PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "context_parallel_size")
"""Expert parallelism is inside these, in both engines."""


def _world_size(args: Args) -> int:
    size = 1
    for name in _PARALLEL:
        value = args.get(name)
        size *= value if isinstance(value, int) and value > 0 else 1
    return size


def engine_of(spec: StudySpec, _trial: TrialRecord) -> EngineKind:
    """Return the engine whose parameters a trial's arguments are: a simulated one takes another's."""
    return spec.search_space.engine


def launched_model(trial: TrialRecord) -> str:
    """Return the model as the engine was given it: a relative path stands whole in the command line that was run."""
    tail = "/" + posixpath.normpath(trial.model).removeprefix("~/")
    whole = (word for word in trial.argv if word.startswith("/") and word.endswith(tail))
    return trial.model if trial.model.startswith("/") else next(whole, resolved_model(trial.model))


def make_deployment(
    run: RunDirectory,
    spec: StudySpec,
    best: TrialRecord,
    reference: TrialRecord | None,
    summary: StudySummary,
    *,
    trials: Sequence[TrialRecord] = (),
    asked: Asked | None = None,
) -> Deployment:
    """Return the deployment of `best`. Raises InputError for a trial without a figure of the objective."""
    started = [t for t in trials or [best] if t.startup_s is not None and t.engine == best.engine]
    return Deployment(
        best=best_file(run, spec, best, reference, summary),
        spec=spec,
        trial=best,
        engine=engine_of(spec, best),
        model=launched_model(best),
        reference=reference,
        startups_s=tuple(trial.startup_s for trial in started if trial.startup_s is not None),
        cold=any(trial.startup_kind == "cold" for trial in started),
        asked=asked or Asked(),
    )


def read_deployment(run: RunDirectory, *, trial: int | None = None, asked: Asked | None = None) -> Deployment:
    """Return what a run's records say of its winning trial.

    Raises InputError where there is no run, no such trial, or nothing that met the objective.
    """
    spec, trials, summary = run.spec(), run.trials(), run.summary()
    numbered = {record.number: record for record in trials}
    best = winning_trial(numbered, summary, trial)
    reference = numbered.get(summary.reference) if summary.reference is not None else None
    spec, summary = spec.of_engine(best.engine), _of_engine(summary, best, reference, spec.objective)
    reference = numbered.get(summary.reference) if summary.reference is not None else None
    return make_deployment(run, spec, best, reference, summary, trials=trials, asked=asked)


def _of_engine(
    summary: StudySummary, best: TrialRecord, reference: TrialRecord | None, objective: ObjectiveSpec
) -> StudySummary:
    """The summary as it is of one engine alone, where another one's best is not the study's."""
    own = next((each for each in summary.engines if each.best == best.number != summary.best), None)
    if own is None:
        return summary if best.number == summary.best else _by_hand(summary, best, reference, objective)
    return replace(
        summary, best=own.best, reference=own.reference, gain=own.gain, objective=own.objective, confirmed=False
    )


def _by_hand(
    summary: StudySummary, best: TrialRecord, reference: TrialRecord | None, objective: ObjectiveSpec
) -> StudySummary:
    """The summary where another trial than the winner is taken: nothing confirmed it, and no soak was its own."""
    figure = summary.decided_by(best)
    against = None if reference is None else replace(reference, objective=summary.decided_by(reference))
    warning = f"trial {best.number} was picked by hand; the study's winner is trial {summary.best}"
    return replace(
        summary,
        best=best.number,
        gain=gain(replace(best, objective=figure), against, objective),
        objective=figure,
        confirmed=False,
        warnings=(*summary.warnings, warning),
    )


def best_of_engine(run: RunDirectory, name: str) -> int:
    """Return the best trial of one of several engines. Raises InputError where there is no such engine, or nothing of
    it met the objective."""
    engines = {each.name: each for each in run.summary().engines}
    if name not in engines:
        known = f"it has {', '.join(engines)}" if engines else "its study has one engine: leave --engine out"
        raise InputError(f"the run has no engine {name!r}", known)
    best = engines[name].best
    if best is None:
        raise InputError(f"nothing of engine {name} met the objectives", "there is nothing to export")
    return best


def picked_trial(run: RunDirectory, word: str) -> int:
    """Return the trial that `throughput`, `latency`, `knee` or a number means (`search.picks`). Raises InputError."""
    return picked(run.spec(), run.trials(), word)


def winning_trial(numbered: Mapping[int, TrialRecord], summary: StudySummary, trial: int | None) -> TrialRecord:
    """Return the trial to deploy: the one asked for by number, else the run's best. The one place that decides it."""
    number = summary.best if trial is None else trial
    if number is None:
        nearest = "" if summary.nearest is None else f"; trial {summary.nearest} came nearest"
        raise InputError(f"nothing met the objectives of {summary.study}{nearest}", "there is nothing to export")
    if number not in numbered:
        raise InputError(f"the run has no trial {number}", f"it has {', '.join(map(str, sorted(numbered)))}")
    return numbered[number]
