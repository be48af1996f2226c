"""A server that is ready comes in, what it gave under load goes out: the canary, then the levels of the objective."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from autotune import load, slo
from autotune.engines.base import Server, VirtualServer
from autotune.engines.telemetry import watching
from autotune.errors import EnvironmentFault
from autotune.records.spec import StudySpec
from autotune.records.trial import Capacity, Failure, LevelPlan, LevelRecord, Phase
from autotune.trial.canary import canary, dialect_of
from autotune.trial.capacity import Bench, find_capacity
from autotune.trial.deaths import client_fault, death
from autotune.trial.deciding import Deciding, ended
from autotune.trial.draining import Drain
from autotune.trial.plans import plan_of
from autotune.trial.twin_of import twin_of

OnPhase = Callable[[str], None]
Watch = Callable[[load.Progress], str | None]
"""Told some ten times a second how a level stands; a reason that it returns ends the level there."""
_PHASE_WORDS = {
    load.LevelPhase.WARMUP: "warming up",
    load.LevelPhase.WINDOW: "measuring",
    load.LevelPhase.DRAIN: "draining",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """What a server gave under load: its levels, or how far it got and why it failed."""

    levels: tuple[LevelRecord, ...] = ()
    load_s: float = 0.0
    failure: Failure | None = None
    capacity: Capacity | None = None


def load_server(
    spec: StudySpec,
    server: Server,
    on_phase: OnPhase,
    watch: Watch | None = None,
    *,
    gpus: int = 1,
    early: bool = True,
    check: Callable[[OnPhase], Failure | None] | None = None,
) -> Loaded:
    """Canary, `check`, then every level, or fewer if the verdict is settled before and `early` says so; `gpus` divides
    rates. A failure of the check ends it before the load. Raises InputError when the workload can't be built."""
    try:
        dialect = dialect_of(spec, server, on_phase)
    except EnvironmentFault as fault:
        return Loaded(failure=client_fault(fault, Phase.CANARY))
    if failure := canary(spec, server, on_phase, dialect) or (check(on_phase) if check else None):
        return Loaded(failure=failure)
    if spec.objective.load.capacity is not None:
        return _searched(spec, server, on_phase, watch, dialect)
    deciding = Deciding(
        objective=spec.objective, gpus=gpus, startup_s=server.startup_s or None, price=spec.price, early=early
    )
    return _levels(spec, server, deciding, on_phase, watch, dialect=dialect)


def _levels(
    spec: StudySpec,
    server: Server,
    deciding: Deciding,
    on_phase: OnPhase,
    watch: Watch | None,
    *,
    dialect: load.Dialect | None,
) -> Loaded:
    """The levels of a load that is given, up to the first that failed or was ended early."""
    levels: list[LevelRecord] = []
    failure: Failure | None = None
    begun = time.monotonic()
    for index in range(spec.objective.load.repeats):
        plan = plan_of(spec, server, spec.objective.load, index)
        try:
            level = _run_level(server, plan, deciding.stopper(plan, levels), on_phase, watch, dialect=dialect)
        except EnvironmentFault as fault:
            failure = client_fault(fault, Phase.LOAD)
            break
        levels.append(level)
        failure = death(server, level)
        if failure is not None or level.stopped:
            break
    return Loaded(levels=tuple(levels), load_s=time.monotonic() - begun, failure=failure)


class _Died(Exception):
    """The server died under a level of a search."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.cause)
        self.failure = failure


class _CalledOff(Exception):
    """Whoever watches the levels wants no more of them."""


def _searched(
    spec: StudySpec, server: Server, on_phase: OnPhase, watch: Watch | None, dialect: load.Dialect | None
) -> Loaded:
    """Levels wherever the search for the capacity puts them; only overload ends one early, and `watch` the search."""
    levels: list[LevelRecord] = []
    reasons: list[str] = []
    begun = time.monotonic()
    deciding = Deciding(objective=spec.objective, early=False)

    def heard(progress: load.Progress) -> str | None:
        reason = None if watch is None else watch(progress)
        reasons.extend([reason] if reason else [])
        return reason

    def run(plan: LevelPlan, kept: list[LevelRecord] = levels) -> LevelRecord:
        level = _run_level(server, plan, deciding.stopper(plan), on_phase, heard, dialect=dialect)
        kept.append(level)
        if failure := death(server, level):
            raise _Died(failure)
        if reasons:
            raise _CalledOff
        return level

    found = failure = None
    try:
        found = find_capacity(
            spec.objective,
            Bench(plan=partial(plan_of, spec, server), run=run, run_aside=partial(run, kept=[]), settle=Drain(server)),
            twin=twin_of(spec, server),
            on_phase=on_phase,
        )
    except _Died as died:
        failure = died.failure
    except _CalledOff:
        pass
    except EnvironmentFault as fault:
        failure = client_fault(fault, Phase.LOAD)
    capacity = None if found is None else found.capacity
    return Loaded(levels=tuple(levels), load_s=time.monotonic() - begun, failure=failure, capacity=capacity)


def _run_level(
    server: Server,
    plan: LevelPlan,
    stopper: slo.Stopper,
    on_phase: OnPhase,
    watch: Watch | None,
    *,
    dialect: load.Dialect | None,
) -> LevelRecord:
    if isinstance(server, VirtualServer):
        on_phase("simulating")
        return ended(server.run_level(plan), plan)
    with watching(server) as telemetry:

        def marking(progress: load.Progress) -> str | None:
            telemetry.mark(progress.elapsed_s)
            return None if watch is None else watch(progress)

        level = _run_watched(server, plan, stopper, on_phase, marking, dialect=dialect)
    return replace(ended(level, plan, stopper), telemetry=telemetry.telemetry())


def _run_watched(
    server: Server,
    plan: LevelPlan,
    stopper: slo.Stopper,
    on_phase: OnPhase,
    watch: Watch,
    *,
    dialect: load.Dialect | None,
) -> LevelRecord:
    shown: load.LevelPhase | None = None

    def show(progress: load.Progress) -> None:
        nonlocal shown
        if progress.phase is not shown:
            shown = progress.phase
            on_phase(_PHASE_WORDS[shown])

    def should_stop(progress: load.Progress) -> str | None:
        return watch(progress) or stopper(progress)

    return load.run_level(
        server.endpoint,
        plan,
        on_progress=show,
        should_stop=should_stop,
        on_record=stopper.record,
        dialect=dialect,
    )
