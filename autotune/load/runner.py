"""The tuner's side of a level of load: hands the plan to the load client, gathers the records while the level runs."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable
from dataclasses import replace
from statistics import fmean

from autotune.load.dialect import Dialect
from autotune.load.frames import Kind
from autotune.load.gathering import Gathering
from autotune.load.process import Clients
from autotune.load.progress import Progress
from autotune.load.response import CUT
from autotune.records.trial import Endpoint, LevelPlan, LevelRecord, RequestPlan, RequestRecord

_POLL_S = 0.1
# How often to ask whether to stop when the client's reports are late.
_ASK_EVERY_S = 0.2
# What one client is trusted with; `make bench-load` measures what it takes on the core at hand.
EVENTS_PER_S_A_CLIENT = 40_000
_ASKED_FOR_LENGTHS = 100  # requests: the mean length of an answer to some 10 %


def run_level(
    endpoint: Endpoint,
    plan: LevelPlan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[Progress], str | None] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
    dialect: Dialect | None = None,
    clients: int | None = None,
) -> LevelRecord:
    """Run one level of load against `endpoint` and return a record for each request that was sent.

    Blocks until the level ended. About ten times a second `on_progress` is told how it stands and `should_stop` asked:
    a reason ends the level at once, requests in flight are recorded with the error `cut`. `on_record` gets each record
    as its request ends. Callbacks should be quick; the load does not wait for them.

    `dialect` is how the server wants its requests (`negotiate`); None: like vLLM. `clients` is how many processes share
    the load, each session whole in one of them; None: as many as it takes (`clients_for`).

    A failed request is a record with an `error`. Raises EnvironmentFault when a load client itself fails; whatever ends
    this call, KeyboardInterrupt too, ends the clients.
    """
    wanted = clients_for(plan) if clients is None else clients
    clients = max(1, min(wanted, plan.concurrency or wanted))
    gathering = Gathering(endpoint, plan, dialect or Dialect(), clients)
    with Clients([gathering.frames(client) for client in range(clients)]) as group:
        attend_at = time.monotonic()
        while not gathering.finished:
            reported = False
            for client, frame in group.read(_POLL_S):
                reported |= frame.kind is Kind.PROGRESS
                record = gathering.take(client, frame)
                if record is not None and on_record is not None:
                    on_record(record)
            now = time.monotonic()
            if gathering.begun and (reported or now >= attend_at):
                attend_at = now + _ASK_EVERY_S
                progress = gathering.progress()
                if _to_stop(gathering, progress, on_progress, should_stop):
                    group.stop()
    return gathering.level()


def _to_stop(
    gathering: Gathering,
    progress: Progress,
    on_progress: Callable[[Progress], None] | None,
    should_stop: Callable[[Progress], str | None] | None,
) -> bool:
    """Tell how the level stands, and ask whether it is to end now; once it is, nobody is asked again."""
    if on_progress is not None:
        on_progress(progress)
    if should_stop is None or gathering.stopped is not None:
        return False
    gathering.stopped = should_stop(progress)
    return gathering.stopped is not None


def clients_for(plan: LevelPlan) -> int:
    """How many clients a level takes, by the token events a second that its rate asks for, at most one a core.

    One for a closed loop, of which only the server's speed tells: the audit says when that is too few.
    """
    first = plan.requests[: min(_ASKED_FOR_LENGTHS, len(plan.requests))]
    if plan.offered_rps is None or not first:
        return 1
    events_per_s = plan.offered_rps * fmean(request.output_tokens for request in first)
    return max(1, min(math.ceil(events_per_s / EVENTS_PER_S_A_CLIENT), os.cpu_count() or 1))


def probe(
    endpoint: Endpoint, request: RequestPlan, timeout_s: float, *, dialect: Dialect | None = None
) -> RequestRecord:
    """Send one request and return its record; no end within `timeout_s` seconds is an error. Raises as `run_level`."""
    plan = LevelPlan(
        requests=(replace(request, at_s=None, after=None),),
        offered_rps=None,
        concurrency=1,
        warmup_s=0.0,
        duration_s=timeout_s,
        drain_s=0.0,
        seed=0,
    )
    (record,) = run_level(endpoint, plan, dialect=dialect).requests
    return replace(record, error=f"no end within {timeout_s:g} s") if record.error == CUT else record
