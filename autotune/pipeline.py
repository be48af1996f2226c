"""The study loop: a study file in, a measured configuration out.

Read `run_study` first; it is the product.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Protocol

from autotune import load, quality, space, study
from autotune.deploy import write_best
from autotune.engines.base import Engine, Suggests, engine_for
from autotune.engines.hardware import Gpu, host_versions, visible_gpus
from autotune.engines.hub import model_versions
from autotune.engines.variants import missing_room, variant_problems
from autotune.errors import EnvironmentFault, InputError, Problem
from autotune.interrupts import Interrupts
from autotune.records.finals import FinalRun
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
from autotune.records.variants import Checkpoint
from autotune.search.checkpoints import Checkpoints, checkpoints_of, name_of, prepare_ahead
from autotune.search.doubts import machine_doubts
from autotune.search.finals import finals_of, reserve_s, search_ended
from autotune.search.finals_launch import announced, candidate_of, setting_of
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
    of_stages = (space.space_problems, load.workload_problems, quality.quality_problems, variant_problems)
    checks = (*of_stages, _engine_problems)
    return study.load_study(path, checks=checks, read_incumbent=_read_incumbent)


def _engine_problems(spec: StudySpec) -> Iterable[Problem]:
    return engine_for(spec).problems(spec)


def _read_incumbent(kind: EngineKind, text: str) -> Args:
    if kind is EngineKind.TENSORRT_LLM:
        from autotune.engines.tensorrt_llm.incumbent import read_incumbent as read_options  # noqa: PLC0415

        return read_options(text)
    if kind is EngineKind.TRITON:
        from autotune.engines.triton.engine import read_model_yaml  # noqa: PLC0415

        return read_model_yaml(text)
    if kind not in (EngineKind.VLLM, EngineKind.SIMULATED):
        raise InputError(f"an incumbent of engine {kind.value} can't be read yet", "leave `incumbent` out")
    from autotune.engines.vllm.incumbent import read_incumbent  # noqa: PLC0415 - only the engine asked for is loaded

    return read_incumbent(text)


Engines = Mapping[str | None, Engine]
"""By the names of a study's engines; under None the only one."""


def engines_of(spec: StudySpec) -> Engines:
    """Return the engines that a study asks for."""
    return {name: engine_for(spec.of_engine(name)) for name in spec.engine_names}


def run_study(
    spec: StudySpec, engine: Engine | Engines, run: RunDirectory, view: View, *, resume: bool = False
) -> StudySummary:
    """Run the study until its budget is spent, and return what it comes to; `best/` is written when something did.

    `engine`: the study's, or all of several by name.
    Raises InputError when the run exists and `resume` is not set (or the other way round, or the study changed),
    EnvironmentFault when another study holds a GPU, or the user's set-up or the machine keeps trials from running,
    KeyboardInterrupt on Ctrl-C after the engine was stopped; finished trials are kept in each case.
    """
    interrupts = Interrupts()
    held = gpus_held(_gpus_to_hold(spec), spec.name, spec.hardware.when_busy, tell=view.message)
    with locked(run), interrupts.heeded(), held:
        records = open_run(spec, run, resume=resume)
        engines: Engines = engine if isinstance(engine, Mapping) else {None: engine}
        running = _Study(spec=spec, engines=engines, run=run, view=view, records=records, interrupts=interrupts)
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
class _Arm:
    """An engine of the study: what its launches share, and what is known without one. `warm`: it was started before.

    `variants` are the same engine with other checkpoints, by name, as far as they were needed.
    """

    setting: TrialSetting
    candidates: space.Space
    gate: Gate
    warm: bool
    variants: dict[str, _Arm] = field(default_factory=dict)

    def of(self, checkpoint: Checkpoint | None) -> _Arm:
        """The arm that a trial with this checkpoint was launched by."""
        return self if checkpoint is None else self.variants.get(checkpoint.name, self)

    @property
    def spec(self) -> StudySpec:
        """The study of this engine alone."""
        return self.setting.spec

    @property
    def called(self) -> str:
        """What messages call it."""
        return "the engine" if self.spec.engine.name is None else f"engine {self.spec.engine.name}"


Arms = Mapping[str | None, _Arm]


@dataclass(slots=True, kw_only=True)
class _Study:
    """The state of a running study: its records so far, and when it began."""

    spec: StudySpec
    engines: Engines
    run: RunDirectory
    view: View
    records: list[TrialRecord]
    interrupts: Interrupts
    begun_s: float = field(default_factory=time.monotonic)
    spent_before_s: float = field(init=False)
    given_up: set[str] = field(default_factory=set)
    checkpoints: Checkpoints = field(init=False)

    def __post_init__(self) -> None:
        self.spent_before_s = sum(record.wall_s + record.waited_s for record in self.records)
        self.checkpoints = checkpoints_of(self.spec, self.run, gpus_of(self.spec), self.records)

    @property
    def spent_s(self) -> float:
        """Wall time of the study, that of the trials before a resume included."""
        return self.spent_before_s + time.monotonic() - self.begun_s

    def search(self) -> str:
        """Launch each engine's reference, then what the sampler proposes; return why the search ended."""
        if (full := missing_room(self.spec)) is not None:
            raise full
        candidates = space.build_spaces(self.spec, gpus=max(1, len(gpus_of(self.spec))))
        for line in (*candidates.notes, *self._doubts()):
            self.view.message(line)
        search = Search(self.spec, candidates, self.spec.storage or self.run.storage_url, self.records)
        for note in search.notes:
            self.view.message(note)
        with self._arms(candidates) as arms:
            for arm in arms.values():
                self._measure_reference(arm, search)
            for arm in arms.values():
                self._suggest(arm, search)
            ended = search_ended(self.spec, self.records) or self._search(arms, search)
            self._finals(arms, search, ended)
            return ended

    def _doubts(self) -> Iterator[str]:
        """What to know before the first launch."""
        yield from study.uneven(self.spec, len(gpus_of(self.spec)) or 1)
        yield from unsettled(self.spec.objective)
        yield from dict.fromkeys(
            doubt for name in self.spec.engine_names for doubt in machine_doubts(self.spec.of_engine(name))
        )

    @contextmanager
    def _arms(self, candidates: space.Space | space.EngineSpaces) -> Iterator[Arms]:
        """Make every engine ready: its own check, and what was learned of it before."""
        spaces = {None: candidates} if isinstance(candidates, space.Space) else candidates.spaces
        with ExitStack() as checks:
            arms = {name: self._arm(name, candidates, checks) for name, candidates in spaces.items()}
            for record in self.records:
                if record.checkpoint is None:
                    arms[record.engine].gate.ran(record)
            yield arms

    def _arm(self, name: str | None, candidates: space.Space, checks: ExitStack) -> _Arm:
        spec, engine = self.spec.of_engine(name), self.engines[name]
        setting = self._setting(spec, engine)
        preflight = checks.enter_context(engine.preflight(gpus=setting.gpus, tell=self.view.message))
        gate = make_gate(spec, engine, setting.gpus, preflight, self.view.message)
        warm = launched_before(self.records, setting.versions)
        return _Arm(setting=setting, candidates=candidates, gate=gate, warm=warm)

    def _with(self, arm: _Arm, checkpoint: Checkpoint) -> _Arm:
        """The same engine with a prepared checkpoint in the place of the model: other files, other memory.

        Arguments are not asked of the engine's own check beforehand: it reads the model's files, and is slow to start.
        """
        if checkpoint.name not in arm.variants:
            spec = replace(arm.spec, model=str(checkpoint.path))
            engine = engine_for(spec)
            setting = replace(self._setting(spec, engine), checkpoint=replace(checkpoint, waited_s=0.0))
            gate = make_gate(spec, engine, setting.gpus, None, self.view.message)
            whose = (spec.engine.name, checkpoint.name)
            before = [record for record in self.records if (record.engine, name_of(record.checkpoint)) == whose]
            for record in before:
                gate.ran(record)
            warm = launched_before(before, setting.versions)
            arm.variants[checkpoint.name] = _Arm(setting=setting, candidates=arm.candidates, gate=gate, warm=warm)
        return arm.variants[checkpoint.name]

    def _measure_reference(self, arm: _Arm, search: Search) -> None:
        """Launch an engine's reference; where it can't hold it, the nearest configurations in its place.

        Launched unasked: the engine's own check gets ready meanwhile, and must accept what turns out to run.
        """
        tried = {record.fingerprint: record for record in self.records if record.role is Role.REFERENCE}
        for place, reference in enumerate(arm.candidates.references(arm.spec.incumbent)):
            record = tried.get(reference.fingerprint)
            if record is None and self._end(search) is None:
                if place:
                    instead = "the nearest configuration takes its place"
                    self.view.message(f"{arm.called} can't hold the reference: {instead}")
                record = self._launch(arm, arm.candidates.as_asked(reference), search.next_number)
                self._keep(arm, search, record)
            if record is None or not record.outcome.teaches_infeasible:
                return

    def _suggest(self, arm: _Arm, search: Search) -> None:
        """Have what an engine suggests proposed first; a study that goes on has tried it."""
        name, engine = arm.spec.engine.name, arm.setting.engine
        tried = any(record.role is Role.SEARCH and record.engine == name for record in self.records)
        if tried or not isinstance(engine, Suggests):
            return
        for args in engine.suggestions(arm.setting.gpus):
            search.suggest({**engine.defaults(), **args}, engine=name)

    def _search(self, arms: Arms, search: Search) -> str:
        while (end := self._end(search)) is None:
            with self.interrupts.held():
                proposal = search.ask()
            if proposal is None:
                return search.why_over or "every configuration that the sampler finds has been launched"
            arm = arms[proposal.engine]
            self._keep(arm, search, self._try(arm, search, proposal))
        return end

    def _finals(self, arms: Arms, search: Search, ended: str) -> None:
        """Launch the best few and the reference anew, then soak the winner; the records say what comes next."""
        while (final := self._next_final()) is not None:
            for line in announced(final, self.records):
                self.view.message(line)
            of = next(record for record in self.records if record.number == final.of)
            fresh = self._again(arms[of.engine], of, search.next_number)
            fresh = replace(fresh, setting=setting_of(fresh.setting, replace(final, ended=ended), self.records))
            self._keep(arms[of.engine], search, self._launch(fresh, candidate_of(of), search.next_number))

    def _again(self, arm: _Arm, of: TrialRecord, number: int) -> _Arm:
        """The arm that launches a trial's configuration anew; its checkpoint may have to be made again by now."""
        if of.checkpoint is None:
            return arm
        candidate = candidate_of(of)
        prepared = self.checkpoints.prepare(of.checkpoint.name, lambda text: self.view.phase(number, candidate, text))
        if prepared.failure is not None:
            raise EnvironmentFault(prepared.failure.cause, prepared.failure.remedy)
        return self._with(arm, prepared.checkpoint)

    def _next_final(self) -> FinalRun | None:
        hours = self.spec.budget.hours
        finals = finals_of(self.spec, self.records, late=hours is not None and self.spent_s > hours * 3600)
        return None if finals is None else finals.next

    def _setting(self, spec: StudySpec, engine: Engine) -> TrialSetting:
        model = model_versions(spec.model, spec.engine.args, spec.engine.env)
        versions = {**host_versions(), **engine.versions(), **model}
        known = engine.defaults()
        tuned = {p.name: known[p.name] for p in spec.search_space.parameters if p.name in known}
        return TrialSetting(
            spec=spec, engine=engine, run=self.run, gpus=gpus_of(spec), versions=versions, defaults=tuned
        )

    def _end(self, search: Search) -> str | None:
        """Why the search ends now, None while it goes on. Raises EnvironmentFault when going on is in vain."""
        searched = [record for record in self.records if record.final is None]
        launched = [record for record in searched if record.outcome is not Outcome.RULED_OUT]
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
        if self.spec.budget.hours and self.spent_s + reserve_s(self.spec, searched) > self.spec.budget.hours * 3600:
            return f"budget of {self.spec.budget.hours:g} hours spent"
        return search.why_over or search.why_settled

    def _try(self, arm: _Arm, search: Search, proposal: Proposal) -> TrialRecord:
        try:
            candidate = proposal.candidate
            if candidate is None or candidate.checkpoint is None:
                return self._judge(arm, proposal)
            return self._try_variant(arm, proposal, candidate, candidate.checkpoint)
        except KeyboardInterrupt:
            search.forget(proposal.number)
            raise

    def _try_variant(self, arm: _Arm, proposal: Proposal, candidate: Candidate, name: str) -> TrialRecord:
        """Have the candidate's checkpoint prepared first; how long that took is kept apart from the trial's time."""
        number = proposal.number
        prepared = self.checkpoints.prepare(name, lambda text: self.view.phase(number, candidate, text))
        if prepared.failure is not None:
            exclusion = Exclusion(source=Source.CHECKPOINT, failure=prepared.failure)
            record = replace(_ruled_out(arm.setting, proposal, exclusion), failure=prepared.failure)
        else:
            record = self._judge(self._with(arm, prepared.checkpoint), proposal)
        return replace(record, checkpoint=prepared.checkpoint)

    def _judge(self, arm: _Arm, proposal: Proposal) -> TrialRecord:
        if exclusion := _exclusion(arm, proposal):
            return _ruled_out(arm.setting, proposal, exclusion)
        assert proposal.candidate is not None  # noqa: S101 - the space refuses what is none
        return self._launch(arm, proposal.candidate, proposal.number)

    def _launch(self, arm: _Arm, candidate: Candidate, number: int) -> TrialRecord:
        """Run a trial; what the environment spoilt is tried again, what the user's set-up spoils ends the study."""
        for attempt in count():
            record = run_trial(arm.setting, candidate, number, lambda text: self.view.phase(number, candidate, text))
            record = _start_labelled(arm, record)
            failure = record.failure
            if why := _why_again(record, self.spec.objective, first=attempt == 0):
                self.view.message(f"trial {number} is tried again: {why}")
                continue
            if failure is None or failure.fault in (Fault.CANDIDATE, Fault.LOAD):
                return record
            if failure.fault is Fault.SETUP:
                raise EnvironmentFault(f"{arm.called} can't run: {failure.cause}", self._advice(failure, number))
            if attempt == ENVIRONMENT_RETRIES:
                raise EnvironmentFault(
                    f"trial {number} failed {attempt + 1} times by the machine's state: {failure.cause}",
                    self._advice(failure, number) + "; finished trials are kept: go on with --resume",
                )
            self.view.message(f"trial {number}, attempt {attempt + 1}: {failure.cause.strip().splitlines()[-1]}")
        raise AssertionError  # unreachable: count() has no end

    def _advice(self, failure: Failure, number: int) -> str:
        log = self.run.trial_directory(number) / "engine.log"
        where = f"; whole log: {log}" if log.exists() else ""  # there is none when nothing could be started
        return f"{failure.remedy or 'the cause stands in the log'}{where}"

    def _keep(self, arm: _Arm, search: Search, record: TrialRecord) -> None:
        """The record on disk is the truth, so it comes first; Optuna and the summary can be rebuilt from it."""
        with self.interrupts.held():
            self.run.write_trial(record)
            self.records.append(record)
            search.tell(record)
            arm.of(record.checkpoint).gate.ran(record)
            self.summarise(stop_reason="running", finished=False)
            self.view.finished(record)
            self._tell_of_the_given_up(search)

    def _tell_of_the_given_up(self, search: Search) -> None:
        for name, why in search.given_up.items():
            if name not in self.given_up:
                self.given_up.add(name)
                self.view.message(f"engine {name}: {why}")

    def summarise(self, *, stop_reason: str, finished: bool) -> StudySummary:
        """Write `summary.json`, and `best/` when the study is finished and something is worth deploying."""
        summary = summarise(self.spec, self.records, stop_reason=stop_reason, finished=finished, wall_s=self.spent_s)
        self.run.write_summary(summary)
        if finished and summary.best is not None:
            by_number = {record.number: record for record in self.records}
            best = by_number[summary.best]
            reference = by_number[summary.reference] if summary.reference is not None else None
            write_best(self.run, self.spec.of_engine(best.engine), best, reference, summary)
        return summary


def _start_labelled(arm: _Arm, record: TrialRecord) -> TrialRecord:
    """Say whether the start-up found what an earlier one had left in caches; nothing of one that did not end."""
    if record.startup_s is None:
        return record
    kind, arm.warm = "warm" if arm.warm else "cold", True
    return replace(record, startup_kind=kind)


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


def prepare_variants(spec: StudySpec, tell: Callable[[str], None]) -> Iterator[str]:
    """Make a study's variants ahead of it, on its GPUs; yield a line for each. Raises EnvironmentFault."""
    with gpus_held(_gpus_to_hold(spec) if spec.variants else (), spec.name, spec.hardware.when_busy, tell=tell):
        yield from prepare_ahead(spec, gpus_of(spec) if spec.variants else (), tell)


def _exclusion(arm: _Arm, proposal: Proposal) -> Exclusion | None:
    """Return why a proposal is not worth a launch. Raises EnvironmentFault when no launch can succeed."""
    if proposal.candidate is None:
        cause = proposal.refusal or "refused"
        failure = Failure(outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=cause)
        return Exclusion(source=Source.SPACE, failure=failure)
    exclusion = arm.gate.exclude(proposal.candidate.args)
    if exclusion and exclusion.failure.fault is Fault.SETUP:
        raise EnvironmentFault(f"{arm.called} can't run: {exclusion.failure.cause}", exclusion.failure.remedy)
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
