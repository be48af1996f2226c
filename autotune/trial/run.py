"""The one orchestrator of launch, load, measure and judge: a candidate in, its `TrialRecord` out.

Whatever happens to the engine or the candidate becomes an `Outcome`; only the user's interrupt passes through, after
the engine was stopped.
"""

from __future__ import annotations

import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime

from autotune.engines import gpu_memory
from autotune.engines.base import Engine, LaunchError, SaysWhatItIs
from autotune.engines.secrets import secrets_of
from autotune.engines.telemetry import OnGpus
from autotune.errors import AutotuneError
from autotune.records.finals import FinalRun, FinalStage
from autotune.records.spec import Args, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase, TrialRecord
from autotune.records.variants import Checkpoint
from autotune.trial.explaining import explained
from autotune.trial.judging import judged
from autotune.trial.loading import OnPhase, load_server
from autotune.trial.overload import lower_the_load
from autotune.trial.quality import QualityCheck
from autotune.trial.soaking import shifted, soak_of
from autotune.trial.store import RunDirectory, without

LOG_TAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSetting:
    """What all trials of a study share; `final` and `shifts` are those of a launch after the search."""

    spec: StudySpec
    engine: Engine
    run: RunDirectory
    gpus: tuple[str, ...]
    versions: Mapping[str, str | None] = field(default_factory=dict)
    defaults: Args = field(default_factory=dict)
    final: FinalRun | None = None
    shifts: bool = False
    checkpoint: Checkpoint | None = None

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
            others_bytes=error.others_bytes,
        )
    except AutotuneError:
        raise
    except Exception:  # noqa: BLE001 - the trial boundary: our own fault must not end a study, nor teach anything
        remedy = "this is a fault of autotune: please report it with the trial's folder"
        record = _failed(record, Outcome.UNKNOWN, traceback.format_exc(), remedy)
    if record.failure is None or record.failure.fault is not Fault.SETUP:
        record = _memory_is_back(record)
    return without(replace(record, wall_s=time.monotonic() - begun), _secrets(setting.spec))


def _secrets(spec: StudySpec) -> tuple[str, ...]:
    key = {} if spec.engine.api_key_env is None else {"key": f"${{{spec.engine.api_key_env}}}"}
    return secrets_of({**spec.engine.env, **key})


def _memory_is_back(record: TrialRecord) -> TrialRecord:
    """Return the record as it is, or as a failure of the environment: the next trial would start with less memory."""
    failure = gpu_memory.kept(record.cleanup)
    return record if failure is None else replace(record, outcome=failure.outcome, failure=failure)


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
        gpus=setting.gpu_count,
        started_utc=utc_now(),
        seed=spec.seed,
        engine=spec.engine.name,
        versions=setting.versions,
        defaults=setting.defaults,
        final=setting.final,
        checkpoint=setting.checkpoint,
    )


def utc_now() -> str:
    """The wall time, ISO 8601, in seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _launch_and_measure(
    setting: TrialSetting, candidate: Candidate, record: TrialRecord, on_phase: OnPhase
) -> TrialRecord:
    directory = setting.run.make_trial_directory(record.number)
    with setting.engine.launch(candidate, trial_dir=directory, gpus=setting.gpus, on_phase=on_phase) as server:
        others_bytes = server.others_bytes if isinstance(server, OnGpus) else {}
        record = replace(
            record,
            simulated=record.simulated or (isinstance(server, SaysWhatItIs) and server.simulated),
            argv=tuple(server.argv),
            startup_s=server.startup_s or None,
            others_bytes=others_bytes,
        )
        check = QualityCheck(
            spec=setting.spec,
            run=setting.run,
            candidate=candidate,
            number=record.number,
            server=server,
            defaults=setting.defaults,
        )
        loaded = load_server(
            setting.spec, server, on_phase, gpus=setting.gpu_count, check=check, early=setting.final is None
        )
        record = replace(
            record,
            load_s=loaded.load_s,
            capacity=loaded.capacity,
            resolved=server.resolved(),
            warnings=tuple(server.warnings()),
            log_tail=tuple(server.log_tail(LOG_TAIL_LINES)),
            quality=check.found,
        )
        soaked = setting.final is not None and setting.final.stage is FinalStage.SOAK and not loaded.failure
        moved = tuple(shifted(setting.spec, server, setting.gpu_count, on_phase)) if soaked and setting.shifts else ()
        on_phase("stopping")
    setting.run.write_requests(record.number, loaded.levels, _secrets(setting.spec))
    record = replace(record, cleanup=server.cleanup)
    if loaded.failure:
        return replace(record, outcome=loaded.failure.outcome, failure=loaded.failure)
    objective = setting.spec.objective
    record = judged(record, objective, loaded.levels, setting.gpu_count, setting.spec.price)
    if soaked and loaded.levels:
        record = replace(record, soak=soak_of(record, setting.spec, loaded.levels[0], setting.gpu_count, moved))
    return explained(lower_the_load(record, objective, loaded.levels), setting.spec)
