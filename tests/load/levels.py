"""Plans made by hand, and clients counted, for the tests of levels."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import psutil

from autotune.load import Dialect, probe
from autotune.records.trial import LevelPlan, LevelRecord, RequestPlan, RequestRecord
from tests.load.scripted import Received, ScriptedServer, Step


def request(index: int, *, at_s: float | None = None, after: int | None = None, think_s: float = 0.0) -> RequestPlan:
    """Three prompt tokens, which say the index, and three of answer."""
    return RequestPlan(
        index=index,
        at_s=at_s,
        output_tokens=3,
        prompt_tokens=3,
        prompt_ids=(200, 201, 300 + index),
        after=after,
        think_s=think_s,
    )


def sessions(
    turns: Sequence[int], *, think_s: float = 0.0, starts_s: Sequence[float] | None = None
) -> list[RequestPlan]:
    """Sessions of so many turns each, one after the other; `starts_s` of an open loop."""
    plan: list[RequestPlan] = []
    for session, count in enumerate(turns):
        plan.append(request(len(plan), at_s=None if starts_s is None else starts_s[session]))
        for _ in range(count - 1):
            plan.append(request(len(plan), after=len(plan) - 1, think_s=think_s))
    return plan


def level(requests: Sequence[RequestPlan], *, concurrency: int | None = None, duration_s: float = 30.0) -> LevelPlan:
    return LevelPlan(
        requests=requests,
        offered_rps=None if concurrency else 10.0,
        concurrency=concurrency,
        warmup_s=0.0,
        duration_s=duration_s,
        drain_s=5.0,
        seed=1,
    )


def clients() -> list[psutil.Process]:
    """The clients that run now; one that ended, but was not waited for yet, doesn't count."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "autotune.load.client" in " ".join(child.cmdline()):
                found.append(child)
    return found


def index_of(received: Received) -> int:
    """Which request of the plan the server got."""
    return int(received.headers["x-request-id"].rsplit("-", 1)[1])


def steps(*script: Step) -> Callable[[Received], Iterator[Step]]:
    return lambda _: iter(script)


def ask(*script: Step, timeout_s: float = 20.0, dialect: Dialect | None = None) -> RequestRecord:
    """The record of one request that is answered by `script`."""
    with ScriptedServer(steps(*script)) as server:
        return probe(server.endpoint, request(0), timeout_s, dialect=dialect)


def errors(record: LevelRecord) -> set[str | None]:
    return {request.error for request in record.requests}
