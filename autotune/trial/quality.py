"""Between canary and load: whether a candidate whose output may differ still says what the reference says."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from autotune import quality
from autotune.engines.base import Server, VirtualServer
from autotune.records.quality import Quality, QualitySpec, QualityStatus, ReferenceAnswers
from autotune.records.spec import StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase, Role
from autotune.records.variants import BASE, CHECKPOINT
from autotune.trial.deaths import wait_for_death
from autotune.trial.differences import flatten, same
from autotune.trial.store import RunDirectory

_INSTEAD = "or say `quality: unchecked` in the study to search without the check"


@dataclass(slots=True, kw_only=True)
class QualityCheck:
    """One trial's check: called when the server is ready, it returns why the trial must end, and `found` is what came
    of it (None: nothing that may change the output is other than the reference's)."""

    spec: StudySpec
    run: RunDirectory
    candidate: Candidate
    number: int
    server: Server
    defaults: Mapping[str, Any] = field(default_factory=dict)
    found: Quality | None = None

    def __call__(self, on_phase: Callable[[str], None]) -> Failure | None:
        """Ask, judge, keep; None lets the trial go on."""
        limits, names = self.spec.objective.quality, quality.guarded(self.spec)
        if limits is None or not names:
            return None
        begun = time.monotonic()
        reference = self.run.reference_answers(self._kind)
        if reference is None or reference.trial == self.number:
            failure = self._keep_reference(limits, names, on_phase)
        elif changed := changed_names(self.candidate, names, reference):
            on_phase(f"checking its answers ({', '.join(changed)})")
            failure = self._check(reference, limits, changed)
        else:
            return None
        if self.found is not None:
            self.found = replace(self.found, asked_s=time.monotonic() - begun)
        return failure

    @property
    def _kind(self) -> str:
        return self.spec.engine.name or self.spec.engine.kind.value

    def _keep_reference(
        self, limits: QualitySpec, names: tuple[str, ...], on_phase: Callable[[str], None]
    ) -> Failure | None:
        if self.candidate.role is not Role.REFERENCE:
            return _setup(f"the answers of the reference are not in {self.run.path}", "start the study anew")
        if isinstance(self.server, VirtualServer):
            return _setup("an engine in virtual time answers nothing", f"set engine.simulate.face: server, {_INSTEAD}")
        on_phase("asking the reference for its answers")
        try:
            reference = quality.ask_reference(
                self.server.endpoint,
                quality.read_prompts(limits.prompts),
                trial=self.number,
                answer_tokens=limits.answer_tokens,
                settings=_settings(self.candidate, self.server, self.defaults, names),
            )
        except quality.Unanswered as error:
            return wait_for_death(self.server, Phase.QUALITY) or _setup(
                f"the reference can't be asked for its answers: {error.why}",
                f"give prompts that it takes (objective.quality.prompts), {_INSTEAD}",
            )
        self.run.write_reference_answers(self._kind, reference)
        self.found = quality.own_noise(reference, limits)
        return None

    def _check(self, reference: ReferenceAnswers, limits: QualitySpec, changed: tuple[str, ...]) -> Failure | None:
        try:
            answers, asked_by = quality.ask_candidate(self.server.endpoint, reference)
        except quality.Unanswered as error:
            self.found = Quality(status=QualityStatus.UNCHECKED, why=error.why, changed=changed)
            return wait_for_death(self.server, Phase.QUALITY) or _candidates(
                Outcome.BAD_CONFIG, f"the check of its answers failed: {error.why}", "see engine.log"
            )
        self.found = replace(quality.judge(reference, answers, asked_by, limits), changed=changed)
        if self.found.status is QualityStatus.PASSED:
            return None
        return _candidates(Outcome.WRONG_OUTPUT, self.found.why, f"changed against the reference: {', '.join(changed)}")


def changed_names(candidate: Candidate, names: tuple[str, ...], reference: ReferenceAnswers) -> tuple[str, ...]:
    """Those of `names` in which a candidate is other than the reference ran with."""
    ours, theirs = _asked_for(candidate, names), reference.settings
    changed = (n for n in names if (n in ours or n in theirs) and not _equal(n, ours, theirs))
    return tuple(changed)


def _asked_for(candidate: Candidate, names: tuple[str, ...]) -> Mapping[str, Any]:
    """What a candidate is given, and its checkpoint, which no engine has an argument for."""
    checkpoint = {CHECKPOINT: candidate.checkpoint or BASE} if CHECKPOINT in names else {}
    return {**checkpoint, **flatten(candidate.args)}


def _equal(name: str, ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> bool:
    return name in ours and name in theirs and same(ours[name], theirs[name])


def _settings(
    candidate: Candidate, server: Server, defaults: Mapping[str, Any], names: tuple[str, ...]
) -> Mapping[str, Any]:
    """What the reference runs with of `names`: told by its engine, else given, else documented."""
    known = {**flatten(defaults), **flatten(server.resolved()), **_asked_for(candidate, names)}
    return {name: known[name] for name in names if name in known}


def _setup(cause: str, remedy: str) -> Failure:
    return Failure(outcome=Outcome.ENVIRONMENT, fault=Fault.SETUP, phase=Phase.QUALITY, cause=cause, remedy=remedy)


def _candidates(outcome: Outcome, cause: str, remedy: str) -> Failure:
    return Failure(outcome=outcome, fault=Fault.CANDIDATE, phase=Phase.QUALITY, cause=cause, remedy=remedy)
