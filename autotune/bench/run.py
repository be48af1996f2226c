"""One measurement of a running server: loaded and judged as a trial is, but for the launch."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from autotune import load
from autotune.bench.aa import noise_of
from autotune.bench.asked import Asked
from autotune.bench.record import BenchRecord
from autotune.engines.endpoint import EndpointServer, address
from autotune.engines.secrets import secrets_of
from autotune.errors import InputError
from autotune.load.problems import one_level
from autotune.records.spec import StudySpec
from autotune.records.trial import LevelRecord, Outcome, Role, TrialRecord
from autotune.trial.explaining import explained
from autotune.trial.judging import judged
from autotune.trial.loading import Loaded, load_server
from autotune.trial.overload import lower_the_load
from autotune.trial.plans import plan_of
from autotune.trial.run import utc_now
from autotune.trial.store import without

INTERRUPTED = "interrupted"


class View(Protocol):
    """Where a measurement shows itself while it runs."""

    def phase(self, text: str) -> None:
        """It has come to `text`."""

    def progress(self, progress: load.Progress) -> None:
        """How the level stands."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The record, and every level with its requests."""

    record: BenchRecord
    levels: tuple[LevelRecord, ...]


def run_bench(asked: Asked, server: EndpointServer, view: View, ended: Callable[[], bool]) -> Measured:
    """Load `server` as `asked`, measure and judge it. `ended`, asked while a level runs, ends it there when true: what
    came until then is measured. Raises InputError when the workload can't be built or doesn't fit the server."""
    spec = asked.study(server.card.root or server.card.name)  # shapes and tokenizers go by the weights' own name
    started_utc, begun = utc_now(), time.monotonic()

    def watch(progress: load.Progress) -> str | None:
        view.progress(progress)
        return INTERRUPTED if ended() else None

    _check_fits(spec, server)
    loaded = load_server(spec, server, view.phase, watch, gpus=asked.gpus, early=asked.early)
    view.phase("judging")
    trial = _judged(spec, server, loaded, started_utc, asked.gpus)
    record = BenchRecord(
        url=address(server.endpoint),
        model=server.endpoint.model_name,
        versions={"server": server.version},
        simulated=server.simulated,
        started_utc=started_utc,
        wall_s=time.monotonic() - begun,
        load_s=loaded.load_s,
        seed=asked.seed,
        gpus=asked.gpus,
        objective=asked.objective,
        outcome=trial.outcome,
        interrupted=ended(),
        failure=trial.failure,
        verdict=trial.verdict,
        value=trial.objective,
        measurements=trial.measurements,
        capacity=trial.capacity,
        diagnosis=trial.diagnosis,
        resolved=trial.resolved,
        noise=noise_of(trial.measurements, asked.objective) if asked.aa else (),
    )
    return without_key(Measured(record=record, levels=loaded.levels), server.endpoint.api_key)


def without_key(measured: Measured, key: str | None) -> Measured:
    """A server may repeat the key in an error: it must reach no file. One as short as a word of our own is none."""
    secrets = secrets_of({"API_KEY": key or ""}, environ={})
    if not secrets:
        return measured
    levels = tuple(without(level, secrets) for level in measured.levels)
    return Measured(record=without(measured.record, secrets), levels=levels)


def _check_fits(spec: StudySpec, server: EndpointServer) -> None:
    """Raise InputError for requests that the server can't hold, before the canary finds out what it makes of them."""
    try:
        plan_of(spec, server, one_level(spec.objective.load), 0)
    except InputError as error:
        hint = f"{error.hint}; or take another objective: `autotune objectives` lists them"
        raise InputError(error.message, hint) from error


def _judged(spec: StudySpec, server: EndpointServer, loaded: Loaded, started_utc: str, gpus: int) -> TrialRecord:
    """A failure keeps its outcome, beside the figures of the levels before it."""
    blank = TrialRecord(
        study=spec.name,
        number=0,
        role=Role.REFERENCE,
        simulated=server.simulated,
        params={},
        args={},
        fingerprint="",
        model=spec.model,
        outcome=Outcome.UNKNOWN,
        load_s=loaded.load_s,
        started_utc=started_utc,
        seed=spec.seed,
        capacity=loaded.capacity,
        resolved=server.resolved(),
    )
    if not any(level.requests for level in loaded.levels):
        outcome = loaded.failure.outcome if loaded.failure else Outcome.INTERRUPTED
        return replace(blank, outcome=outcome, failure=loaded.failure)
    trial = judged(blank, spec.objective, loaded.levels, gpus)
    if loaded.failure is not None:
        return replace(trial, outcome=loaded.failure.outcome, failure=loaded.failure)
    return explained(lower_the_load(trial, spec.objective, loaded.levels), spec)
