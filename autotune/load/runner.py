"""The tuner's side of a level of load: hands the plan to the load client, gathers the records while the level runs."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from autotune.errors import EnvironmentFault
from autotune.load.frames import Kind
from autotune.load.gathering import Gathering
from autotune.load.process import ClientProcess
from autotune.load.progress import Progress
from autotune.load.response import CUT
from autotune.records.trial import Endpoint, LevelPlan, LevelRecord, RequestPlan, RequestRecord

# The client reports ten times a second; a silence of this length means that it, or the machine, hangs.
_SILENCE_MAX_S = 30.0
_POLL_S = 0.1
# How often to ask whether to stop when the client's reports are late.
_ASK_EVERY_S = 0.2


def run_level(
    endpoint: Endpoint,
    plan: LevelPlan,
    *,
    on_progress: Callable[[Progress], None] | None = None,
    should_stop: Callable[[Progress], str | None] | None = None,
    on_record: Callable[[RequestRecord], None] | None = None,
) -> LevelRecord:
    """Run one level of load against `endpoint` and return a record for each request that was sent.

    Blocks until the level ended. About ten times a second `on_progress` is told how it stands and `should_stop` asked:
    a reason ends the level at once, requests in flight are recorded with the error `cut`. `on_record` gets each record
    as its request ends. Callbacks should be quick; the load does not wait for them.

    A failed request is a record with an `error`. Raises EnvironmentFault when the load client itself fails; whatever
    ends this call, KeyboardInterrupt too, ends the client.
    """
    gathering = Gathering(endpoint, plan)
    with ClientProcess(gathering.frames()) as client:
        attend_at = heard_at = time.monotonic()
        while gathering.end is None:
            reported = False
            for frame in client.read(_POLL_S):
                heard_at = time.monotonic()
                reported |= frame.kind is Kind.PROGRESS
                record = gathering.take(frame)
                if record is not None and on_record is not None:
                    on_record(record)
            now = time.monotonic()
            if now - heard_at > _SILENCE_MAX_S:
                raise EnvironmentFault(
                    f"the load client said nothing for {_SILENCE_MAX_S:g} s", "is this machine overloaded or suspended?"
                )
            if gathering.begun and (reported or now >= attend_at):
                attend_at = now + _ASK_EVERY_S
                progress = gathering.progress()
                if on_progress is not None:
                    on_progress(progress)
                if should_stop is not None and gathering.stopped is None:
                    gathering.stopped = should_stop(progress)
                    if gathering.stopped is not None:
                        client.stop()
    return gathering.level()


def probe(endpoint: Endpoint, request: RequestPlan, timeout_s: float) -> RequestRecord:
    """Send one request and return its record; no end within `timeout_s` seconds is an error. Raises as `run_level`."""
    plan = LevelPlan(
        requests=(request,), offered_rps=None, concurrency=1, warmup_s=0.0, duration_s=timeout_s, drain_s=0.0, seed=0
    )
    (record,) = run_level(endpoint, plan).requests
    return replace(record, error=f"no end within {timeout_s:g} s") if record.error == CUT else record
