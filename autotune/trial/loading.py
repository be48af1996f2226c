"""A server that is ready comes in, what it gave under load goes out: the canary, then the levels of the objective."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from autotune import load, slo
from autotune.engines.base import Server, VirtualServer
from autotune.errors import EnvironmentFault
from autotune.records.spec import FixedLength, Length, ObjectiveSpec, StudySpec
from autotune.records.trial import (
    Capacity,
    Failure,
    Fault,
    LevelPlan,
    LevelRecord,
    Outcome,
    Phase,
    RequestPlan,
)

CANARY_TIMEOUT_S = 180.0  # a first request may compile kernels; a longest request may queue for ever (vllm#39407)
DEATH_WATCH_S = 6.0  # vLLM's API server outlives a killed worker by about 3 s

OnPhase = Callable[[str], None]
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


def load_server(spec: StudySpec, server: Server, on_phase: OnPhase) -> Loaded:
    """Canary, then every level. Raises InputError when the workload can't be built."""
    if failure := _canary(spec.objective, server, on_phase):
        return Loaded(failure=failure)
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
            return Loaded(levels=tuple(levels), load_s=time.monotonic() - begun, failure=_client_fault(fault))
        levels.append(level)
        if failure := _death(server, level):
            return Loaded(levels=tuple(levels), load_s=time.monotonic() - begun, failure=failure)
        if level.stopped:
            break
    return Loaded(levels=tuple(levels), load_s=time.monotonic() - begun)


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

    planned = round(plan.offered_rps * plan.duration_s) if plan.offered_rps else None
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
