"""The study loop: a study file in, a measured configuration out.

Read `run_study` first; it is the product.
"""

from __future__ import annotations

import fcntl
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol

from autotune import space, study
from autotune.deploy import write_best
from autotune.engines.base import Engine, engine_for
from autotune.engines.hardware import host_versions, visible_gpus
from autotune.errors import EnvironmentFault, InputError, Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.summary import StudySummary
from autotune.records.trial import (
    Candidate,
    Failure,
    Fault,
    Outcome,
    Phase,
    Role,
    TrialRecord,
)
from autotune.search.study import Proposal, Search
from autotune.search.winner import gain, nearest, pick, reference_of
from autotune.trial.run import TrialSetting, blank_record, run_trial, utc_now
from autotune.trial.store import RunDirectory, write_atomically

ENVIRONMENT_RETRIES = 2  # a port taken or a neighbour's memory passes; three in a row is the machine's state


class View(Protocol):
    """Where the progress of a study is shown."""

    def phase(self, number: int, candidate: Candidate, text: str) -> None:
        """The running trial has come to `text`."""

    def finished(self, record: TrialRecord) -> None:
        """A trial ended."""

    def message(self, text: str) -> None:
        """Something that the user should know."""


def read_study(path: Path) -> StudySpec:
    """Return the study in `path`, checked by every stage. Raises StudyFileError with all its problems."""
    return study.load_study(path, checks=(space.space_problems, _engine_problems), read_incumbent=_read_incumbent)


def _engine_problems(spec: StudySpec) -> Iterable[Problem]:
    return engine_for(spec).problems(spec)


def _read_incumbent(kind: EngineKind, text: str) -> Args:
    if kind not in (EngineKind.VLLM, EngineKind.SIMULATED):
        raise InputError(f"an incumbent of engine {kind.value} can't be read yet", "leave `incumbent` out")
    from autotune.engines.vllm.incumbent import read_incumbent  # noqa: PLC0415 - only the engine asked for is loaded

    return read_incumbent(text)


def run_study(spec: StudySpec, engine: Engine, run: RunDirectory, view: View, *, resume: bool = False) -> StudySummary:
    """Run the study until its budget is spent, and return what it comes to; `best/` is written when something did.

    Raises InputError when the run exists and `resume` is not set (or the other way round, or the study changed),
    EnvironmentFault when the user's set-up or the machine keeps trials from running, KeyboardInterrupt on Ctrl-C after
    the engine was stopped; finished trials are kept in each case.
    """
    with _locked(run), _interrupts():
        records = _open_run(spec, run, resume=resume)
        keeper = _Study(spec=spec, engine=engine, run=run, view=view, records=records)
        try:
            stop_reason = keeper.search()
        except BaseException as error:
            keeper.summarise(stop_reason=_why_stopped(error), finished=False)
            raise
        return keeper.summarise(stop_reason=stop_reason, finished=True)


def _why_stopped(error: BaseException) -> str:
    return "interrupted" if isinstance(error, KeyboardInterrupt) else str(error).splitlines()[0]


@dataclass(slots=True, kw_only=True)
class _Study:
    """The state of a running study: its records so far, and when it began."""

    spec: StudySpec
    engine: Engine
    run: RunDirectory
    view: View
    records: list[TrialRecord]
    begun_s: float = field(default_factory=time.monotonic)
    spent_before_s: float = field(init=False)

    def __post_init__(self) -> None:
        self.spent_before_s = sum(record.wall_s for record in self.records)

    @property
    def spent_s(self) -> float:
        """Wall time of the study, that of the trials before a resume included."""
        return self.spent_before_s + time.monotonic() - self.begun_s

    def search(self) -> str:
        """Launch the reference, then what the sampler proposes; return why the search ended."""
        setting = self._setting()
        candidates = space.build_space(self.spec, gpus=max(1, len(setting.gpus)))
        for note in candidates.notes:
            self.view.message(note)
        search = Search(self.spec, candidates, self.spec.storage or self.run.storage_url, self.records)
        if not any(record.role is Role.REFERENCE for record in self.records):
            reference = candidates.reference(self.spec.incumbent)
            self._keep(search, self._launch(setting, reference, search.next_number))
        while reason := self._go_on(search):
            if reason != "go on":
                return reason
            proposal = search.ask()
            if proposal is None:
                return "every configuration that the sampler finds has been launched"
            self._keep(search, self._try(setting, search, proposal))
        return "budget spent"

    def _setting(self) -> TrialSetting:
        gpus = _gpus(self.spec)
        versions = {**host_versions(), **self.engine.versions()}
        known = self.engine.defaults()
        tuned = {p.name: known[p.name] for p in self.spec.search_space.parameters if p.name in known}
        return TrialSetting(
            spec=self.spec, engine=self.engine, run=self.run, gpus=gpus, versions=versions, defaults=tuned
        )

    def _go_on(self, search: Search) -> str:
        """`go on`, or why not; empty when the budget of launches is spent."""
        if self._launched() >= self.spec.budget.trials:
            return ""
        if self.spec.budget.hours and self.spent_s > self.spec.budget.hours * 3600:
            return f"budget of {self.spec.budget.hours:g} hours spent"
        if search.exhausted:
            return f"{search.refused} proposals were refused by the space's rules"
        return "go on"

    def _launched(self) -> int:
        return sum(record.outcome is not Outcome.RULED_OUT for record in self.records)

    def _try(self, setting: TrialSetting, search: Search, proposal: Proposal) -> TrialRecord:
        if proposal.candidate is None:
            return _ruled_out(setting, proposal)
        try:
            return self._launch(setting, proposal.candidate, proposal.number)
        except KeyboardInterrupt:
            search.forget(proposal.number)
            raise

    def _launch(self, setting: TrialSetting, candidate: Candidate, number: int) -> TrialRecord:
        """Run a trial; what the environment spoilt is tried again, what the user's set-up spoils ends the study."""
        for attempt in count():
            record = run_trial(setting, candidate, number, lambda text: self.view.phase(number, candidate, text))
            failure = record.failure
            if record.outcome is Outcome.CLIENT_LIMITED and attempt == 0:
                self.view.message(f"trial {number} is tried again: the load client could not keep up")
                continue
            if failure is None or failure.fault is Fault.CANDIDATE:
                return record
            if failure.fault is Fault.SETUP:
                raise EnvironmentFault(f"the engine can't run: {failure.cause}", self._advice(failure, number))
            if attempt == ENVIRONMENT_RETRIES:
                raise EnvironmentFault(
                    f"trial {number} failed {attempt + 1} times by the machine's state: {failure.cause}",
                    self._advice(failure, number) + "; finished trials are kept: go on with --resume",
                )
            self.view.message(f"trial {number}, attempt {attempt + 1}: {failure.cause.strip().splitlines()[-1]}")
        raise AssertionError  # unreachable: count() has no end

    def _advice(self, failure: Failure, number: int) -> str:
        log = self.run.trial_directory(number) / "engine.log"
        return f"{failure.remedy or 'the cause stands in the log'}; whole log: {log}"

    def _keep(self, search: Search, record: TrialRecord) -> None:
        """The record on disk is the truth, so it comes first; Optuna and the summary can be rebuilt from it."""
        self.run.write_trial(record)
        self.records.append(record)
        search.tell(record)
        self.summarise(stop_reason="running", finished=False)
        self.view.finished(record)

    def summarise(self, *, stop_reason: str, finished: bool) -> StudySummary:
        """Write `summary.json`, and `best/` when the study is finished and something is worth deploying."""
        summary = summarise(self.spec, self.records, stop_reason=stop_reason, finished=finished, wall_s=self.spent_s)
        self.run.write_summary(summary)
        if finished and summary.best is not None:
            by_number = {record.number: record for record in self.records}
            best = by_number[summary.best]
            write_best(self.run, self.spec, best, by_number.get(summary.reference or 0), summary)
        return summary


def _gpus(spec: StudySpec) -> tuple[str, ...]:
    """The GPUs that the engine is given; a simulated one has as many as the study says, or one."""
    if spec.simulated:
        return tuple(str(gpu) for gpu in spec.hardware.gpus or (0,))
    return tuple(gpu.id for gpu in visible_gpus(spec.hardware.gpus))


def _ruled_out(setting: TrialSetting, proposal: Proposal) -> TrialRecord:
    candidate = Candidate(params=proposal.params, args=proposal.params, role=Role.SEARCH, fingerprint="")
    failure = Failure(
        outcome=Outcome.RULED_OUT, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=proposal.refusal or "refused"
    )
    blank = blank_record(setting, candidate, proposal.number)
    return replace(blank, outcome=failure.outcome, failure=failure)


def summarise(
    spec: StudySpec, records: Sequence[TrialRecord], *, stop_reason: str, finished: bool, wall_s: float
) -> StudySummary:
    """What `records` come to: best, nearest, gain over the reference, and how far it can be relied on."""
    best = pick(records, spec.objective)
    reference = reference_of(records)
    closest = nearest(records) if best is None else None
    settled = best is not None and best.outcome is Outcome.OK
    return StudySummary(
        study=spec.name,
        simulated=spec.simulated,
        finished=finished,
        stop_reason=stop_reason,
        updated_utc=utc_now(),
        best=best.number if best else None,
        nearest=closest.number if closest else None,
        reference=reference.number if reference else None,
        gain=gain(best, reference, spec.objective) if best else None,
        objective=best.objective if best else None,
        settled=settled,
        confirmed=settled and not spec.simulated,
        quality="unchecked" if spec.quality == "unchecked" else "not_applicable",
        launched=sum(record.outcome is not Outcome.RULED_OUT for record in records),
        ruled_out=sum(record.outcome is Outcome.RULED_OUT for record in records),
        outcomes=dict(Counter(record.outcome.value for record in records)),
        wall_s=wall_s,
        warnings=_warnings(best, reference),
        versions=records[-1].versions if records else {},
    )


def _warnings(best: TrialRecord | None, reference: TrialRecord | None) -> tuple[str, ...]:
    found: list[str] = []
    if best is not None and best is not reference:
        found.append("best and reference were measured in one launch each: launches differ by more than repeats do")
    if best is not None and best.outcome is Outcome.UNSURE:
        found.append("an SLO of the best configuration could not be settled: measure longer")
    if reference is None:
        found.append("the reference could not be measured: there is no gain to state")
    return tuple(found)


# --- the run directory ----------------------------------------------------------------------------------------------


def _open_run(spec: StudySpec, run: RunDirectory, *, resume: bool) -> list[TrialRecord]:
    if not run.exists():
        if resume:
            raise InputError(f"{run.path} holds no study to resume", "start it without --resume")
        write_atomically(run.study_file, study.dump_study(spec).encode())
        run.write_spec(spec)
        return []
    if not resume:
        raise InputError(
            f"{run.path} holds a study already", "add --resume to go on with it, or give this study another name"
        )
    if changed := _differing(run.spec(), spec):
        raise InputError(
            f"the study changed since it was started: {', '.join(changed)}",
            "only budget and storage may change; put the old values back or give this study another name",
        )
    run.write_spec(spec)
    return run.trials()


def _differing(old: StudySpec, new: StudySpec) -> list[str]:
    """The fields that differ and make trials incomparable. Compared as JSON, as the old one was read back from it."""
    return [
        spec_field.name
        for spec_field in fields(StudySpec)
        if spec_field.name not in ("budget", "storage")
        and _plain(getattr(old, spec_field.name)) != _plain(getattr(new, spec_field.name))
    ]


def _plain(value: object) -> Any:  # noqa: ANN401 - JSON
    from pydantic_core import to_jsonable_python  # noqa: PLC0415 - heavy

    return to_jsonable_python(value)


@contextmanager
def _locked(run: RunDirectory) -> Iterator[None]:
    """Hold the run against a second tuner; the kernel lets go of the lock however this process ends."""
    created = not run.path.exists()
    run.path.mkdir(parents=True, exist_ok=True)
    with (run.path / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"another autotune works on {run.path}", "wait for it, or stop it first") from None
        try:
            yield
        finally:
            if created and not run.exists():
                (run.path / ".lock").unlink(missing_ok=True)
                run.path.rmdir()


@contextmanager
def _interrupts() -> Iterator[None]:
    """SIGTERM (a scheduler's stop) and SIGHUP (a closed terminal) end a study as Ctrl-C does."""

    def interrupt(_signal: int, _frame: object) -> None:
        raise KeyboardInterrupt

    kept = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
