"""The study loop: a study file in, a measured configuration out.

Read `run_study` first; it is the product.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Protocol

from autotune import load, space, study
from autotune.deploy import write_best
from autotune.engines.base import Engine, Suggests, engine_for
from autotune.engines.hardware import Gpu, host_versions, visible_gpus
from autotune.engines.hub import model_versions
from autotune.errors import EnvironmentFault, InputError, Problem
from autotune.interrupts import Interrupts
from autotune.records.spec import Args, EngineKind, ObjectiveSpec, StudySpec
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
from autotune.search.doubts import machine_doubts
from autotune.search.gate import Exclusion, Gate, Source, make_gate
from autotune.search.study import Proposal, Search
from autotune.search.summary import summarise
from autotune.slo import unsettled
from autotune.trial.gpu_locks import gpus_held
from autotune.trial.run import TrialSetting, blank_record, run_trial
from autotune.trial.session import launched_before, locked, open_run
from autotune.trial.store import RunDirectory

HOPELESS_LAUNCHES = 3  # so many unexplained failures and nothing else: the rest of the budget would go the same way
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
    checks = (space.space_problems, load.workload_problems, _engine_problems)
    return study.load_study(path, checks=checks, read_incumbent=_read_incumbent)


def _engine_problems(spec: StudySpec) -> Iterable[Problem]:
    return engine_for(spec).problems(spec)


def _read_incumbent(kind: EngineKind, text: str) -> Args:
    if kind is EngineKind.TENSORRT_LLM:
        from autotune.engines.tensorrt_llm.incumbent import read_incumbent as read_options  # noqa: PLC0415

        return read_options(text)
    if kind not in (EngineKind.VLLM, EngineKind.SIMULATED):
        raise InputError(f"an incumbent of engine {kind.value} can't be read yet", "leave `incumbent` out")
    from autotune.engines.vllm.incumbent import read_incumbent  # noqa: PLC0415 - only the engine asked for is loaded

    return read_incumbent(text)


def run_study(spec: StudySpec, engine: Engine, run: RunDirectory, view: View, *, resume: bool = False) -> StudySummary:
    """Run the study until its budget is spent, and return what it comes to; `best/` is written when something did.

    Raises InputError when the run exists and `resume` is not set (or the other way round, or the study changed),
    EnvironmentFault when another study holds a GPU, or the user's set-up or the machine keeps trials from running,
    KeyboardInterrupt on Ctrl-C after the engine was stopped; finished trials are kept in each case.
    """
    interrupts = Interrupts()
    held = gpus_held(_gpus_to_hold(spec), spec.name, spec.hardware.when_busy, tell=view.message)
    with locked(run), interrupts.heeded(), held:
        records = open_run(spec, run, resume=resume)
        running = _Study(spec=spec, engine=engine, run=run, view=view, records=records, interrupts=interrupts)
        try:
            stop_reason = running.search()
        except BaseException as error:
            with suppress(EnvironmentFault):  # a full disk stopped the study: that is the error to show
                running.summarise(stop_reason=_why_stopped(error), finished=False)
            raise
        return running.summarise(stop_reason=stop_reason, finished=True)


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
    interrupts: Interrupts
    begun_s: float = field(default_factory=time.monotonic)
    spent_before_s: float = field(init=False)
    warm: bool = False

    def __post_init__(self) -> None:
        self.spent_before_s = sum(record.wall_s for record in self.records)

    @property
    def spent_s(self) -> float:
        """Wall time of the study, that of the trials before a resume included."""
        return self.spent_before_s + time.monotonic() - self.begun_s

    def search(self) -> str:
        """Launch the reference, then what the sampler proposes; return why the search ended."""
        setting = self._setting()
        self.warm = launched_before(self.records, setting.versions)
        candidates = space.build_space(self.spec, gpus=max(1, len(setting.gpus)))
        for note in candidates.notes:
            self.view.message(note)
        for warning in (*unsettled(self.spec.objective), *machine_doubts(self.spec)):
            self.view.message(warning)
        search = Search(self.spec, candidates, self.spec.storage or self.run.storage_url, self.records)
        with self.engine.preflight(gpus=setting.gpus, tell=self.view.message) as preflight:
            gate = make_gate(self.spec, self.engine, setting.gpus, preflight, self.view.message)
            for record in self.records:
                gate.ran(record)
            self._measure_reference(setting, search, gate, candidates)
            self._suggest(setting, search)
            return self._search(setting, search, gate)

    def _measure_reference(self, setting: TrialSetting, search: Search, gate: Gate, candidates: space.Space) -> None:
        """Launch the reference; where the engine can't hold it, the nearest configurations in its place.

        Launched unasked: the engine's own check gets ready meanwhile, and must accept what turns out to run.
        """
        tried = {record.fingerprint: record for record in self.records if record.role is Role.REFERENCE}
        for reference in candidates.references(self.spec.incumbent):
            record = tried.get(reference.fingerprint)
            if record is None and self._end(search) is None:
                if self.records:
                    self.view.message("the engine can't hold the reference: the nearest configuration takes its place")
                record = self._launch(setting, reference, search.next_number)
                self._keep(search, gate, record)
            if record is None or not record.outcome.teaches_infeasible:
                return

    def _suggest(self, setting: TrialSetting, search: Search) -> None:
        """Have what the engine suggests proposed first; a study that goes on has tried it."""
        if any(record.role is Role.SEARCH for record in self.records) or not isinstance(self.engine, Suggests):
            return
        for args in self.engine.suggestions(setting.gpus):
            search.suggest({**self.engine.defaults(), **args})

    def _search(self, setting: TrialSetting, search: Search, gate: Gate) -> str:
        while (end := self._end(search)) is None:
            with self.interrupts.held():
                proposal = search.ask()
            if proposal is None:
                return "every configuration that the sampler finds has been launched"
            self._keep(search, gate, self._try(setting, search, gate, proposal))
        return end

    def _setting(self) -> TrialSetting:
        gpus = gpus_of(self.spec)
        model = model_versions(self.spec.model, self.spec.engine.args, self.spec.engine.env)
        versions = {**host_versions(), **self.engine.versions(), **model}
        known = self.engine.defaults()
        tuned = {p.name: known[p.name] for p in self.spec.search_space.parameters if p.name in known}
        return TrialSetting(
            spec=self.spec, engine=self.engine, run=self.run, gpus=gpus, versions=versions, defaults=tuned
        )

    def _end(self, search: Search) -> str | None:
        """Why the search ends now, None while it goes on. Raises EnvironmentFault when going on is in vain."""
        launched = [record for record in self.records if record.outcome is not Outcome.RULED_OUT]
        if len(launched) >= HOPELESS_LAUNCHES and all(record.outcome is Outcome.UNKNOWN for record in launched):
            last = launched[-1]
            cause = last.failure.cause if last.failure else "unknown"
            log = self.run.trial_directory(last.number) / "engine.log"
            raise EnvironmentFault(
                f"each of the first {len(launched)} launches failed for a reason that no rule knows: {cause}",
                f"is the engine's command right? whole log: {log}",
            )
        if len(launched) >= self.spec.budget.trials:
            return "budget spent"
        if launched and not self.spec.search_space.parameters:
            return "nothing is searched: it was measured as it is"
        if self.spec.budget.hours and self.spent_s > self.spec.budget.hours * 3600:
            return f"budget of {self.spec.budget.hours:g} hours spent"
        if search.exhausted:
            return f"{search.refused} proposals were ruled out before a launch"
        return None

    def _try(self, setting: TrialSetting, search: Search, gate: Gate, proposal: Proposal) -> TrialRecord:
        try:
            if exclusion := _exclusion(gate, proposal):
                return _ruled_out(setting, proposal, exclusion)
            assert proposal.candidate is not None  # noqa: S101 - the space refuses what is none
            return self._launch(setting, proposal.candidate, proposal.number)
        except KeyboardInterrupt:
            search.forget(proposal.number)
            raise

    def _launch(self, setting: TrialSetting, candidate: Candidate, number: int) -> TrialRecord:
        """Run a trial; what the environment spoilt is tried again, what the user's set-up spoils ends the study."""
        for attempt in count():
            record = run_trial(setting, candidate, number, lambda text: self.view.phase(number, candidate, text))
            record = self._start_labelled(record)
            failure = record.failure
            if why := _why_again(record, self.spec.objective, first=attempt == 0):
                self.view.message(f"trial {number} is tried again: {why}")
                continue
            if failure is None or failure.fault in (Fault.CANDIDATE, Fault.LOAD):
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

    def _start_labelled(self, record: TrialRecord) -> TrialRecord:
        """Say whether the start-up found what an earlier one had left in caches; nothing of one that did not end."""
        if record.startup_s is None:
            return record
        kind, self.warm = "warm" if self.warm else "cold", True
        return replace(record, startup_kind=kind)

    def _advice(self, failure: Failure, number: int) -> str:
        log = self.run.trial_directory(number) / "engine.log"
        where = f"; whole log: {log}" if log.exists() else ""  # there is none when nothing could be started
        return f"{failure.remedy or 'the cause stands in the log'}{where}"

    def _keep(self, search: Search, gate: Gate, record: TrialRecord) -> None:
        """The record on disk is the truth, so it comes first; Optuna and the summary can be rebuilt from it."""
        with self.interrupts.held():
            self.run.write_trial(record)
            self.records.append(record)
            search.tell(record)
            gate.ran(record)
            self.summarise(stop_reason="running", finished=False)
            self.view.finished(record)

    def summarise(self, *, stop_reason: str, finished: bool) -> StudySummary:
        """Write `summary.json`, and `best/` when the study is finished and something is worth deploying."""
        summary = summarise(self.spec, self.records, stop_reason=stop_reason, finished=finished, wall_s=self.spent_s)
        self.run.write_summary(summary)
        if finished and summary.best is not None:
            by_number = {record.number: record for record in self.records}
            best = by_number[summary.best]
            reference = by_number[summary.reference] if summary.reference is not None else None
            write_best(self.run, self.spec, best, reference, summary)
        return summary


def _why_again(record: TrialRecord, objective: ObjectiveSpec, *, first: bool) -> str | None:
    """Why a trial is launched once more, None when it counts: the client was slow, or an engine that had served ended
    without a word; or start-ups are judged, and this one was cold, as no later one of the run will be."""
    failure = record.failure
    served = failure is not None and failure.phase is not Phase.LAUNCH
    if first and (record.outcome is Outcome.CLIENT_LIMITED or (record.outcome is Outcome.UNKNOWN and served)):
        return failure.cause.strip().splitlines()[-1] if failure else "the client was slow"
    judged_by = {objective.metric, *(slo.metric for slo in objective.slos)}
    if record.outcome.measured and record.startup_kind == "cold" and "startup_s" in judged_by:
        return "start-ups are judged, and this one was cold"
    return None


def gpus_of(spec: StudySpec) -> tuple[str, ...]:
    """Return the GPUs that the engine is given; a simulated one and an endpoint have as many as the study says."""
    if spec.simulated:
        return tuple(str(gpu) for gpu in spec.hardware.gpus or (0,))
    if spec.engine.kind is EngineKind.ENDPOINT:  # this machine's are not its own
        return tuple(str(gpu) for gpu in spec.hardware.gpus or ())
    return tuple(gpu.id for gpu in visible_gpus(spec.hardware.gpus))


def _gpus_to_hold(spec: StudySpec) -> tuple[Gpu, ...]:
    """The GPUs that no other study may use meanwhile: none where nothing is launched on this machine's."""
    here = spec.engine.kind is not EngineKind.ENDPOINT and not spec.simulated
    return visible_gpus(spec.hardware.gpus) if here else ()


def _exclusion(gate: Gate, proposal: Proposal) -> Exclusion | None:
    """Return why a proposal is not worth a launch. Raises EnvironmentFault when no launch can succeed."""
    if proposal.candidate is None:
        cause = proposal.refusal or "refused"
        failure = Failure(outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=cause)
        return Exclusion(source=Source.SPACE, failure=failure)
    exclusion = gate.exclude(proposal.candidate.args)
    if exclusion and exclusion.failure.fault is Fault.SETUP:
        raise EnvironmentFault(f"the engine can't run: {exclusion.failure.cause}", exclusion.failure.remedy)
    return exclusion


def _ruled_out(setting: TrialSetting, proposal: Proposal, exclusion: Exclusion) -> TrialRecord:
    params = proposal.params
    nothing = Candidate(params=params, args=params, role=Role.SEARCH, fingerprint="")
    return replace(
        blank_record(setting, proposal.candidate or nothing, proposal.number),
        outcome=Outcome.RULED_OUT,
        failure=replace(exclusion.failure, outcome=Outcome.RULED_OUT),
        ruled_out_by=exclusion.source.value,
    )
