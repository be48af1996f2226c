"""Why a server gives no more under load: it died, or the load client did."""

from __future__ import annotations

import time

from autotune.engines.base import Server
from autotune.errors import EnvironmentFault
from autotune.records.trial import Failure, Fault, LevelRecord, Outcome, Phase

DEATH_WATCH_S = 6.0  # vLLM's API server outlives a killed worker by about 3 s
POLL_S = 0.1


def client_fault(fault: EnvironmentFault, phase: Phase) -> Failure:
    """The load client was killed or hung: the machine's doing, so the trial is tried again."""
    return Failure(
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.ENVIRONMENT,
        phase=phase,
        cause=fault.message,
        remedy=fault.hint,
    )


def death(server: Server, level: LevelRecord) -> Failure | None:
    """Return why the server died under load, None when it lives. An engine may die after its last answer, so a level
    with errors is watched for as long as vLLM takes to exit."""
    if any(request.error not in (None, "cut") for request in level.requests):
        return wait_for_death(server, Phase.LOAD)
    return server.failure(Phase.LOAD)


def wait_for_death(server: Server, phase: Phase) -> Failure | None:
    """Return why a server that failed a request died, once it has; None when it lives on.

    One that is not ours is looked at once: it has no process to outlive another.
    """
    deadline = time.monotonic() + DEATH_WATCH_S if server.argv else 0.0
    while (failure := server.failure(phase)) is None and time.monotonic() < deadline:
        time.sleep(POLL_S)
    return failure
