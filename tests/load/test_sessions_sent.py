"""Conversations through the real client: each turn after the one before it, whatever else the load does."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from time import perf_counter
from typing import Any

import pytest

from autotune.load import Dialect, run_level
from autotune.load.backlog import Backlog, Ready
from autotune.load.body import renderer
from autotune.load.frames import Kind
from autotune.load.level import Level, Setup
from autotune.records.trial import LevelRecord, RequestPlan, RequestRecord
from tests.load.levels import errors, index_of, level, request, sessions
from tests.load.scripted import Received, ScriptedServer, Step, answer

pytestmark = pytest.mark.integration

FAILED = b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n"


def turns(record: LevelRecord, plan: list[RequestPlan]) -> Iterator[tuple[RequestRecord, RequestRecord, RequestPlan]]:
    """Every later turn: the record before it, its own, its plan."""
    for before, after in pairwise(record.requests):
        if plan[after.index].after is not None:
            yield before, after, plan[after.index]


def check_turns(record: LevelRecord, plan: list[RequestPlan]) -> None:
    """Each turn is due when the one before it had ended and its user had thought, and latency counts from then."""
    for before, after, planned in turns(record, plan):
        assert before.done_s is not None
        assert after.scheduled_s == pytest.approx(before.done_s + planned.think_s, abs=1e-9)
        assert after.start_s == after.scheduled_s
        assert after.sent_s > after.start_s - 0.0001


def test_a_slot_of_a_closed_loop_belongs_to_one_session_until_its_last_turn_ended() -> None:
    plan = sessions([3, 1, 3, 2, 1, 3], think_s=0.04)
    with ScriptedServer(lambda received: answer(received, pause_s=0.01)) as server:
        record = run_level(server.endpoint, level(plan, concurrency=2))
        assert server.most_in_flight <= 2
    assert [one.index for one in record.requests] == list(range(len(plan)))
    assert errors(record) == {None}
    check_turns(record, plan)
    lives: list[list[float]] = []
    for one in record.requests:
        if plan[one.index].after is None:
            assert one.scheduled_s is None
            lives.append([one.sent_s, 0.0])
        lives[-1][1] = one.done_s or 0.0
    for begun, _ in lives:
        assert sum(first <= begun < last for first, last in lives) <= 2


def test_turns_do_not_move_the_arrivals_of_an_open_loop() -> None:
    starts = [0.0, 0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.35]
    plan = sessions([2, 3, 1, 4, 1, 2, 3, 1], think_s=0.03, starts_s=starts)
    with ScriptedServer(lambda received: answer(received, pause_s=0.02)) as server:
        record = run_level(server.endpoint, level(plan, duration_s=5.0))
        assert server.most_in_flight > 2
    assert errors(record) == {None}
    assert [one.scheduled_s for one in record.requests if plan[one.index].after is None] == starts
    check_turns(record, plan)


def test_a_turn_due_before_what_was_waited_for_is_not_kept_waiting() -> None:
    """The client waits for the second arrival when the first session's turn becomes due before it."""
    plan = sessions([2, 1], think_s=0.01, starts_s=[0.0, 1.5])
    with ScriptedServer(answer) as server:
        record = run_level(server.endpoint, level(plan, duration_s=5.0))
    assert record.requests[1].sent_s < 1.0
    check_turns(record, plan)


def test_a_session_goes_on_after_an_error() -> None:
    plan = sessions([3, 2], think_s=0.02)

    def script(received: Received) -> Iterator[Step]:
        return iter([FAILED]) if index_of(received) in (0, 3) else answer(received)

    with ScriptedServer(script) as server:
        record = run_level(server.endpoint, level(plan, concurrency=1))
    assert [one.error for one in record.requests] == ["HTTP 500: ", None, None, "HTTP 500: ", None]
    check_turns(record, plan)


@pytest.mark.parametrize("concurrency", [None, 2])
def test_no_turn_starts_after_the_window(concurrency: int | None) -> None:
    """Who thinks beyond it keeps the slot: nobody else comes in the place of a user who is there."""
    plan = sessions([2, 2, 2], think_s=3600.0, starts_s=None if concurrency else [0.0, 0.1, 0.2])
    with ScriptedServer(answer) as server:
        record = run_level(server.endpoint, level(plan, concurrency=concurrency, duration_s=0.5))
    assert [one.index for one in record.requests] == ([0, 2] if concurrency else [0, 2, 4])


def test_what_is_read_ahead_is_bounded_in_sessions_and_bytes_but_not_by_what_runs() -> None:
    short, long = (Ready(index=0, data=b"x" * size) for size in (1, 2**23))
    backlog = Backlog(slots=0)
    for _ in range(3):
        backlog.add(long)
    assert not backlog.full
    backlog.add(long)
    assert backlog.full
    while backlog:
        backlog.pop()
    assert backlog.low
    session = backlog.add(replace(long, more=True))
    backlog.pop()
    for _ in range(9):  # turns of a session that runs
        assert backlog.add(replace(long, more=True)) is session
    assert not backlog.full
    backlog.add(long)
    for _ in range(64):
        backlog.add(short)
    assert backlog.full


def test_a_cut_ends_a_session() -> None:
    plan = sessions([3, 3])
    with ScriptedServer(lambda received: answer(received, pause_s=60.0)) as server:
        record = run_level(
            server.endpoint, level(plan, concurrency=2), should_stop=lambda p: "enough" if p.in_flight == 2 else None
        )
    assert {(one.index, one.error) for one in record.requests} == {(0, "cut"), (3, "cut")}


def test_sessions_longer_than_what_is_read_ahead() -> None:
    """The turns of a session that runs don't stand in the way of the sessions behind them."""
    plan = sessions([300, 1, 1, 200], starts_s=[0.0, 0.1, 0.2, 0.3])
    with ScriptedServer(answer) as server:
        record = run_level(server.endpoint, level(plan))
    assert [one.index for one in record.requests] == list(range(len(plan)))
    assert errors(record) == {None}


class Notes:
    """The way to the tuner, as a list."""

    def __init__(self) -> None:
        self.frames: list[tuple[Kind, dict[str, Any]]] = []
        self.came = asyncio.Event()

    def send(self, kind: Kind, meta: dict[str, Any], payload: bytes = b"") -> None:
        self.frames.append((kind, meta))
        self.came.set()

    def pause(self) -> None: ...

    def resume(self) -> None: ...

    async def until(self, kind: Kind, index: int | None = None) -> None:
        while not any(sent is kind and meta.get("index") == index for sent, meta in self.frames):
            self.came.clear()
            await self.came.wait()


def test_a_turn_that_the_tuner_made_late_is_sent_when_it_is_there() -> None:
    """Its predecessor ended before it was read: the session rests, and nothing thinks that it is over."""

    async def run(port: int, ready: list[Ready]) -> Notes:
        notes = Notes()
        finished = asyncio.Event()
        setup = Setup(host="127.0.0.1", port=port, tls=False, concurrency=1, end_s=30.0, drain_s=0.0)
        level = Level(setup, notes, finished.set)
        *first, turn = ready
        for one in first:
            level.feed(one)
        await notes.until(Kind.READY)
        level.begin(perf_counter())
        await notes.until(Kind.RECORD, first[-1].index)
        assert not finished.is_set()
        level.feed(turn)
        level.end_of_plan()
        await finished.wait()
        return notes

    with ScriptedServer(answer) as server:
        render = renderer(server.endpoint, secrets.token_hex(2), Dialect())
        ready = [Ready(index=i, data=render(request(i)), more=i == 63) for i in range(65)]
        notes = asyncio.run(asyncio.wait_for(run(server.endpoint.port, ready), 30))
    assert [meta["index"] for kind, meta in notes.frames if kind is Kind.RECORD] == list(range(65))
