"""The one orchestrator of launch, load, measure and judge: a candidate in, its `TrialRecord` out.

Whatever happens to the engine or the candidate becomes an `Outcome`; only the user's interrupt passes through, after
the engine was stopped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from autotune import load, measure, slo
from autotune.engines.base import Engine, LaunchError, Server, VirtualServer
from autotune.errors import AutotuneError, EnvironmentFault
from autotune.records.spec import Args, FixedLength, Length, ObjectiveSpec, StudySpec
from autotune.records.trial import (
    Candidate,
    Estimate,
    Failure,
    Fault,
    LevelPlan,
    LevelRecord,
    Measurement,
    Outcome,
    Phase,
    RequestPlan,
    Ruling,
    TrialRecord,
)
from autotune.trial.applied import applied
from autotune.trial.store import RunDirectory

CANARY_TIMEOUT_S = 180.0  # a first request may compile kernels; a longest request may queue for ever (vllm#39407)
DEATH_WATCH_S = 6.0  # vLLM's API server outlives a killed worker by about 3 s
LOG_TAIL_LINES = 40

OnPhase = Callable[[str], None]
_PHASE_WORDS = {
    load.LevelPhase.WARMUP: "warming up",
    load.LevelPhase.WINDOW: "measuring",
    load.LevelPhase.DRAIN: "draining",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """What all trials of a study share."""

    spec: StudySpec
    engine: Engine
    run: RunDirectory
    gpus: tuple[str, ...]
    versions: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Args = field(default_factory=dict)

    @property
    def gpu_count(self) -> int:
        """What per-GPU figures are divided by: at least 1, so that they are defined on a CPU."""
        return max(1, len(self.gpus))


def run_trial(setting: TrialSetting, candidate: Candidate, number: int, on_phase: OnPhase) -> TrialRecord:
    """Launch `candidate`, load it, measure it, judge it, stop it, and return the record (not yet written).

    Raises KeyboardInterrupt when the user interrupts, EnvironmentFault when no trial could run (an environment variable
    that the study refers to is missing, the disk is full), InputError when the workload can't be built (a dataset with
    bad lines); the engine is stopped by then.
    """
    begun = time.monotonic()
    record = blank_record(setting, candidate, number)
    try:
        record = _launch_and_measure(setting, candidate, record, on_phase)
    except LaunchError as error:
        record = replace(
            record,
            outcome=error.failure.outcome,
            failure=error.failure,
            argv=error.argv,
            log_tail=error.log_tail,
            cleanup=error.cleanup,
        )
    except AutotuneError:
        raise
    except Exception:  # noqa: BLE001 - the trial boundary: our own fault must not end a study, nor teach anything
        remedy = "this is a fault of autotune: please report it with the trial's folder"
        record = _failed(record, Outcome.UNKNOWN, traceback.format_exc(), remedy)
    return replace(record, wall_s=time.monotonic() - begun)


def _failed(record: TrialRecord, outcome: Outcome, cause: str, remedy: str) -> TrialRecord:
    failure = Failure(outcome=outcome, fault=Fault.ENVIRONMENT, phase=Phase.LOAD, cause=cause, remedy=remedy)
    return replace(record, outcome=outcome, failure=failure)


def blank_record(setting: TrialSetting, candidate: Candidate, number: int) -> TrialRecord:
    """Return the record of a trial of which nothing is known yet."""
    spec = setting.spec
    return TrialRecord(
        study=spec.name,
        number=number,
        role=candidate.role,
        simulated=setting.engine.simulated,
        params=candidate.params,
        args=candidate.args,
        fingerprint=candidate.fingerprint,
        model=spec.model,
        outcome=Outcome.UNKNOWN,
        started_utc=utc_now(),
        seed=spec.seed,
        versions=setting.versions,
        defaults=setting.defaults,
    )


def utc_now() -> str:
    """The wall time, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _launch_and_measure(
    setting: TrialSetting, candidate: Candidate, record: TrialRecord, on_phase: OnPhase
) -> TrialRecord:
    directory = setting.run.make_trial_directory(record.number)
    with setting.engine.launch(candidate, trial_dir=directory, gpus=setting.gpus, on_phase=on_phase) as server:
        record = replace(record, argv=tuple(server.argv), startup_s=server.startup_s)
        failure, levels, load_s = _load(setting.spec, server, on_phase)
        record = replace(
            record,
            load_s=load_s,
            resolved=server.resolved(),
            warnings=tuple(server.warnings()),
            log_tail=tuple(server.log_tail(LOG_TAIL_LINES)),
        )
        on_phase("stopping")
    setting.run.write_requests(record.number, levels)
    record = replace(record, cleanup=server.cleanup)
    if failure:
        return replace(record, outcome=failure.outcome, failure=failure)
    return _judged(record, setting, levels)


# --- load -----------------------------------------------------------------------------------------------------------


def _load(spec: StudySpec, server: Server, on_phase: OnPhase) -> tuple[Failure | None, tuple[LevelRecord, ...], float]:
    """Canary, then every level; (failure or None, levels, seconds under load)."""
    if failure := _canary(spec.objective, server, on_phase):
        return failure, (), 0.0
    levels: list[LevelRecord] = []
    begun = time.monotonic()
    for index in range(spec.objective.load.repeats):
        plan = load.build_level(
            spec.objective.workload,
            spec.objective.load,
            seed=level_seed(spec.seed, index),
            vocab_size=server.vocab_size,
            max_total_tokens=server.max_model_len,
        )
        try:
            level = _run_level(server, plan, spec.objective, on_phase)
        except EnvironmentFault as fault:
            return _client_fault(fault), tuple(levels), time.monotonic() - begun
        levels.append(level)
        if failure := _death(server, level):
            return failure, tuple(levels), time.monotonic() - begun
        if level.stopped:
            break
    return None, tuple(levels), time.monotonic() - begun


def _client_fault(fault: EnvironmentFault) -> Failure:
    """The load client was killed or hung: the machine's doing, so the trial is tried again."""
    return Failure(
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.ENVIRONMENT,
        phase=Phase.LOAD,
        cause=fault.message,
        remedy=fault.hint,
    )


def level_seed(study_seed: int, index: int) -> int:
    """The seed of a level: another for each level of a launch, but the same for every candidate.

    All are measured on one trace, so that a difference between two is not one of luck with the requests drawn.
    """
    return study_seed * 1_000 + index


def _run_level(server: Server, plan: LevelPlan, objective: ObjectiveSpec, on_phase: OnPhase) -> LevelRecord:
    if isinstance(server, VirtualServer):
        on_phase("simulating")
        return server.run_level(plan)
    shown: load.LevelPhase | None = None

    def show(progress: load.Progress) -> None:
        nonlocal shown
        if progress.phase is not shown:
            shown = progress.phase
            on_phase(_PHASE_WORDS[shown])

    planned = round(plan.poisson_rps * plan.duration_s) if plan.poisson_rps else None
    guard = slo.overload_guard(objective, planned)
    return load.run_level(server.endpoint, plan, on_progress=show, should_stop=guard, on_record=guard.record)


def _canary(objective: ObjectiveSpec, server: Server, on_phase: OnPhase) -> Failure | None:
    """Send one longest request alone: servers that die on the first request, or hold one that can't fit for ever, are
    common."""
    if isinstance(server, VirtualServer) or objective.workload.dataset is not None:
        return None
    on_phase("canary")
    request = longest_request(objective)
    answer = load.probe(server.endpoint, request, timeout_s=CANARY_TIMEOUT_S)
    if answer.error is None:
        return None
    if failure := _wait_for_death(server, Phase.CANARY):
        return failure
    return Failure(
        outcome=Outcome.BAD_CONFIG,
        fault=Fault.CANDIDATE,
        phase=Phase.CANARY,
        cause=f"one request of {request.prompt_tokens} + {request.output_tokens} tokens failed: {answer.error}",
        remedy="the engine runs but can't serve the workload's longest request: see engine.log",
    )


def longest_request(objective: ObjectiveSpec) -> RequestPlan:
    """The longest request that a synthetic workload can hold, with prompt ids that any vocabulary has."""
    workload = objective.workload
    prompt_tokens, output_tokens = longest(workload.input_tokens), longest(workload.output_tokens)
    return RequestPlan(
        index=0,
        at_s=None,
        prompt_tokens=prompt_tokens,
        output_tokens=output_tokens,
        prompt_ids=tuple(200 + index % 1_000 for index in range(prompt_tokens)),
    )


def longest(length: Length | None) -> int:
    """The longest that a length can be, in tokens; 1 where none is given."""
    if length is None:
        return 1
    return length.tokens if isinstance(length, FixedLength) else length.high


def _death(server: Server, level: LevelRecord) -> Failure | None:
    """Return why the server died under load, None when it lives. An engine may die after its last answer, so a level
    with errors is watched for as long as vLLM takes to exit."""
    if any(request.error not in (None, "cut") for request in level.requests):
        return _wait_for_death(server, Phase.LOAD)
    return server.failure(Phase.LOAD)


def _wait_for_death(server: Server, phase: Phase) -> Failure | None:
    deadline = time.monotonic() + DEATH_WATCH_S
    while time.monotonic() < deadline:
        if failure := server.failure(phase):
            return failure
        time.sleep(0.1)
    return None


# --- measure, judge -------------------------------------------------------------------------------------------------


def _judged(record: TrialRecord, setting: TrialSetting, levels: Sequence[LevelRecord]) -> TrialRecord:
    objective = setting.spec.objective
    extra = {"startup_s": record.startup_s} if record.startup_s is not None else {}
    measured = [
        (
            level,
            measure.measure(
                level,
                metrics=[objective.metric],
                slos=objective.slos,
                gpus=setting.gpu_count,
                confidence=objective.confidence,
                extra=extra,
            ),
        )
        for level in levels
    ]
    verdict = slo.judge(objective, measured)
    outcomes = {Ruling.PASS: Outcome.OK, Ruling.FAIL: Outcome.SLO_MISS, Ruling.UNSURE: Outcome.UNSURE}
    outcome = outcomes[verdict.ruling]
    client_limited = any("client" in why for why in verdict.untrusted)
    not_applied = applied(record.args, record.resolved).differing.values()
    verdict = replace(verdict, untrusted=(*verdict.untrusted, *not_applied))
    if client_limited:  # also a miss may be the client's doing
        outcome = Outcome.CLIENT_LIMITED
    elif verdict.untrusted and outcome is Outcome.OK:
        outcome = Outcome.UNSURE
    return replace(
        record,
        outcome=outcome,
        verdict=verdict,
        measurements=tuple(measurement for _, measurement in measured),
        objective=pooled(objective.metric, [measurement for _, measurement in measured]),
    )


def pooled(metric: str, measurements: Sequence[Measurement]) -> Estimate | None:
    """The mean of a metric over the levels of one launch; its interval spans the mean bounds. None if unmeasured."""
    found = [values for m in measurements if (values := m.values.get(metric)) is not None]
    if not found:
        return None
    return Estimate(
        value=sum(estimate.value for estimate in found) / len(found),
        low=_mean([estimate.low for estimate in found]),
        high=_mean([estimate.high for estimate in found]),
        n=sum(estimate.n for estimate in found),
    )


def _mean(bounds: Sequence[float | None]) -> float | None:
    known = [bound for bound in bounds if bound is not None]
    return sum(known) / len(known) if len(known) == len(bounds) else None
