"""Levels of load through the real client process, against a server that follows scripts."""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from pathlib import Path

import psutil
import pytest

from autotune.errors import EnvironmentFault, InputError
from autotune.load import LevelPhase, Progress, build_level, probe, run_level
from autotune.records.spec import FixedLength, LoadSpec, WorkloadSpec
from autotune.records.trial import Endpoint, LevelPlan, LevelRecord, RequestPlan, RequestRecord
from tests.load.levels import clients, errors, steps
from tests.load.scripted import (
    DONE,
    HEAD,
    LAST_CHUNK,
    Fault,
    Received,
    ScriptedServer,
    Step,
    answer,
    chunk,
    delta,
    event,
    token,
    usage,
)

pytestmark = pytest.mark.integration

SHORT = WorkloadSpec(input_tokens=FixedLength(tokens=16), output_tokens=FixedLength(tokens=3))
REQUEST = build_level(SHORT, LoadSpec(concurrency=1), seed=1).requests[0]


@pytest.fixture(autouse=True)
def _no_client_left() -> Iterator[None]:
    yield
    assert not clients()


def closed(requests: int, concurrency: int = 2, warmup_s: float = 0.0, duration_s: float = 60.0) -> LevelPlan:
    load = LoadSpec(concurrency=concurrency, warmup_s=warmup_s, duration_s=duration_s, max_requests=requests)
    return build_level(SHORT, load, seed=1)


def ask(*script: Step, timeout_s: float = 20.0) -> RequestRecord:
    """The record of one request that is answered by `script`."""
    with ScriptedServer(steps(*script)) as server:
        return probe(server.endpoint, REQUEST, timeout_s)


def test_a_closed_loop_keeps_exactly_so_many_in_flight() -> None:
    with ScriptedServer(lambda received: answer(received, pause_s=0.01)) as server:
        level = run_level(server.endpoint, closed(30, concurrency=5))
        assert server.most_in_flight == 5
        assert server.connections == 5
    assert [record.index for record in level.requests] == list(range(30))
    assert errors(level) == {None}
    # No slot rests: the sixth request leaves when the first of five ends, and so on.
    ends = sorted(record.done_s or 0 for record in level.requests)
    assert all(record.sent_s >= end for record, end in zip(level.requests[5:], ends, strict=False))


def test_a_record_has_what_was_asked_what_came_and_when() -> None:
    record = ask(
        HEAD,
        chunk(token()),
        0.05,
        chunk(token()) + chunk(token(finish="length")),
        chunk(usage(16, 3, cached=8) + DONE) + LAST_CHUNK,
    )
    assert replace(record, sent_s=0.0, chunk_s=(), done_s=None) == RequestRecord(
        index=0,
        scheduled_s=None,
        sent_s=0.0,
        status=200,
        prompt_tokens=16,
        output_tokens=3,
        cached_tokens=8,
        shared_tokens=0,
        asked_prompt_tokens=16,
        asked_output_tokens=3,
        finish_reason="length",
    )
    first, second, third = record.chunk_s
    assert 0 <= record.sent_s < first
    assert second - first == pytest.approx(0.05, abs=0.04)
    assert third - second < 0.04
    assert record.done_s is not None
    assert record.done_s >= third


def test_an_open_loop_sends_at_the_planned_times_on_as_many_connections_as_it_takes() -> None:
    plan = build_level(SHORT, LoadSpec(poisson_rps=40.0, duration_s=1.0, warmup_s=0.2), seed=5)
    with ScriptedServer(lambda received: answer(received, pause_s=0.1)) as server:
        level = run_level(server.endpoint, plan)
        assert server.most_in_flight > 5
    assert [record.scheduled_s for record in level.requests] == [request.at_s for request in plan.requests]
    lags = sorted(record.sent_s - record.start_s for record in level.requests)
    assert lags[0] > -0.001
    assert lags[len(lags) // 2] < 0.02
    assert [record.warmup for record in level.requests] == [record.start_s < 0.2 for record in level.requests]
    assert errors(level) == {None}
    assert level.window_s == (0.2, 1.2)
    assert level.client.send_lag_p99_ms is not None
    assert level.client.cpu_ratio is not None
    assert 0 < level.client.cpu_ratio < 1


def test_the_server_gets_the_prompts_of_the_plan() -> None:
    plan = closed(4)
    with ScriptedServer(answer) as server:
        run_level(server.endpoint, plan)
        got = {tuple(received.body["prompt"]) for received in server.received}
    assert got == {request.prompt_ids for request in plan.requests}


def test_a_conversation_with_reasoning() -> None:
    request = RequestPlan(index=0, at_s=None, output_tokens=9, messages=({"role": "user", "content": "hi"},))
    body = (
        delta(role="assistant", content="") + delta(reasoning_content="hm") + delta(content="é") + delta("stop") + DONE
    )
    data = HEAD + b"".join(chunk(body[i : i + 7]) for i in range(0, len(body), 7)) + LAST_CHUNK
    with ScriptedServer(steps(*(bytes([byte]) for byte in data))) as server:
        record = probe(server.endpoint, request, 20.0)
        assert server.received[0].path == "/v1/chat/completions"
        assert server.received[0].body["messages"] == [{"role": "user", "content": "hi"}]
    assert (record.error, len(record.chunk_s), record.finish_reason) == (None, 2, "stop")


@pytest.mark.parametrize(
    ("script", "error"),
    [
        ((b"HTTP/1.1 503 Busy\r\ncontent-length: 4\r\n\r\nfull",), "HTTP 503: full"),
        (
            (HEAD, chunk(token()) + chunk(event({"error": {"message": "dead"}})) + chunk(DONE) + LAST_CHUNK),
            "server error: dead",
        ),
        ((HEAD, chunk(token()), Fault.CLOSE), "connection closed early"),
        ((HEAD, chunk(token()), 0.05, Fault.RESET), "connection reset by peer"),
        ((Fault.CLOSE,), "connection closed early"),
        ((HEAD + chunk(token()) + LAST_CHUNK,), "truncated"),
        ((HEAD + chunk(DONE) + LAST_CHUNK,), "no tokens"),
        ((b"SSH-2.0-OpenSSH_9.2\r\n",), "bad HTTP: Expected HTTP/"),
        ((HEAD + b"zz\r\n",), "bad HTTP: Invalid character in chunk size"),
    ],
)
def test_every_failure_of_a_server_is_an_error_of_the_request(script: tuple[Step, ...], error: str) -> None:
    assert (ask(*script).error or "").startswith(error)


def test_a_refused_connection_is_an_error_of_the_request() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    record = probe(Endpoint(host="127.0.0.1", port=port, model_name="tiny"), REQUEST, 20.0)
    assert (record.error, record.status) == ("connection refused", None)
    assert record.done_s is not None


def test_a_probe_ends_at_its_timeout() -> None:
    record = ask(HEAD, chunk(token()), Fault.HANG, timeout_s=0.2)
    assert (record.error, len(record.chunk_s), record.done_s) == ("no end within 0.2 s", 1, None)


def test_a_kept_connection_that_the_server_closed_is_no_error() -> None:
    """The client may send just as an idle connection times out; it sends again on a new one."""
    turns = count()

    def script(received: Received) -> Iterator[Step]:
        if next(turns) == 1:
            yield Fault.RESET
        yield from answer(received)

    with ScriptedServer(script) as server:
        level = run_level(server.endpoint, closed(3, concurrency=1))
        assert server.connections == 2
        assert len(server.received) == 4
    assert errors(level) == {None}


def test_a_closed_loop_does_not_storm_a_failing_server() -> None:
    with ScriptedServer(steps(b"HTTP/1.1 500 No\r\ncontent-length: 0\r\n\r\n")) as server:
        level = run_level(server.endpoint, closed(10_000, concurrency=1, duration_s=1.0))
    assert 2 <= len(level.requests) <= 20
    assert errors(level) == {"HTTP 500: "}


def test_at_the_end_nothing_new_is_sent_and_what_runs_may_finish() -> None:
    plan = closed(10_000, concurrency=2, duration_s=0.5)
    with ScriptedServer(lambda received: answer(received, pause_s=0.06)) as server:
        level = run_level(server.endpoint, plan)
    assert errors(level) == {None}
    assert max(record.sent_s for record in level.requests) < 0.5
    assert max(record.done_s or 0 for record in level.requests) > 0.5
    assert level.window_s == (0.0, 0.5)
    assert level.stopped is None


def test_what_does_not_finish_in_the_drain_is_cut() -> None:
    plan = replace(closed(10_000, concurrency=3, duration_s=0.2), drain_s=0.1)
    with ScriptedServer(steps(HEAD, chunk(token()), Fault.HANG)) as server:
        level = run_level(server.endpoint, plan)
    assert [(record.error, len(record.chunk_s), record.done_s) for record in level.requests] == [("cut", 1, None)] * 3


def test_a_closed_loop_that_ran_out_of_requests_has_a_shorter_window() -> None:
    with ScriptedServer(answer) as server:
        level = run_level(server.endpoint, closed(4))
    low, high = level.window_s
    assert low == 0.0
    assert max(record.done_s or 0 for record in level.requests) <= high < 10


def test_progress_and_records_come_while_the_level_runs() -> None:
    seen: list[Progress] = []
    records: list[RequestRecord] = []
    at_record: list[int] = []

    def on_record(record: RequestRecord) -> None:
        records.append(record)
        at_record.append(len(seen))

    plan = closed(10_000, concurrency=2, warmup_s=0.3, duration_s=0.6)
    with ScriptedServer(lambda received: answer(received, pause_s=0.05)) as server:
        level = run_level(server.endpoint, plan, on_progress=seen.append, on_record=on_record)
    assert sorted(records, key=lambda record: record.index) == list(level.requests)
    assert at_record[0] < at_record[-1] <= len(seen)
    assert {LevelPhase.WARMUP, LevelPhase.WINDOW} <= {progress.phase for progress in seen}
    assert all(progress.sent == progress.done + progress.errors + progress.in_flight for progress in seen)
    last = seen[-1]
    assert 0 < last.done <= len(level.requests)
    assert 0 < last.completions_5s <= last.done
    assert last.tokens >= 3 * last.done


def test_waiting_requests_are_seen_and_a_reason_stops_the_level_at_once() -> None:
    seen: list[Progress] = []

    def should_stop(progress: Progress) -> str | None:
        seen.append(progress)
        return "overload" if progress.oldest_wait_s > 0.3 else None

    def script(received: Received) -> Iterator[Step]:
        if received.number < 2:
            yield from answer(received)
        yield Fault.HANG

    with ScriptedServer(script) as server:
        level = run_level(server.endpoint, closed(10_000, concurrency=3), should_stop=should_stop)
    assert level.stopped == "overload"
    assert sorted(record.error or "" for record in level.requests) == ["", "", "cut", "cut", "cut"]
    assert seen[-1].waiting_first_token == 3
    assert seen[-1].oldest_wait_s < 0.6  # asked often enough
    _, end_s = level.window_s
    assert end_s - seen[-1].elapsed_s < 0.1  # and stopped within 100 ms


def test_a_reason_stops_an_open_loop_too() -> None:
    plan = build_level(SHORT, LoadSpec(poisson_rps=50.0, duration_s=60.0, warmup_s=0.0), seed=5)
    with ScriptedServer(answer) as server:
        level = run_level(server.endpoint, plan, should_stop=lambda p: "enough" if p.done > 10 else None)
    assert level.stopped == "enough"
    assert 10 < len(level.requests) < 500
    assert level.window_s[1] < 30


class Interrupted(Exception):
    """Stands for what a signal handler raises."""


def test_whatever_ends_the_call_ends_the_client() -> None:
    seen: list[int] = []

    def on_progress(_: Progress) -> None:
        seen.extend(client.pid for client in clients())
        raise Interrupted

    with ScriptedServer(steps(Fault.HANG)) as server, pytest.raises(Interrupted):
        run_level(server.endpoint, closed(10_000), on_progress=on_progress)
    assert len(seen) == 1
    assert not psutil.pid_exists(seen[0])


def test_ctrl_c_in_the_terminal_does_not_reach_the_client() -> None:
    def on_progress(progress: Progress) -> None:
        if progress.elapsed_s < 0.3:
            (client,) = clients()
            assert os.getsid(client.pid) == client.pid
            client.send_signal(signal.SIGINT)

    with ScriptedServer(lambda received: answer(received, pause_s=0.05)) as server:
        level = run_level(server.endpoint, closed(10_000, duration_s=0.5), on_progress=on_progress)
    assert level.stopped is None
    assert errors(level) == {None}


@pytest.mark.parametrize(
    ("kill", "message"),
    [
        (signal.SIGKILL, r"ended in the middle of a level \(signal SIGKILL\)"),
        (signal.SIGTERM, "another program ended the load client"),
    ],
)
def test_a_client_that_someone_killed_is_a_fault_of_the_environment(kill: signal.Signals, message: str) -> None:
    def on_progress(_: Progress) -> None:
        for client in clients():
            client.send_signal(kill)

    with ScriptedServer(steps(Fault.HANG)) as server, pytest.raises(EnvironmentFault, match=message):
        run_level(server.endpoint, closed(10_000), on_progress=on_progress)


def test_the_client_ends_when_the_tuner_dies(tmp_path: Path) -> None:
    """The tuner is a child here that kills itself in the middle of a level with a hung server."""
    with ScriptedServer(steps(Fault.HANG)) as server:
        note = tmp_path / "client.pid"
        tuner = psutil.Popen([sys.executable, "-m", "tests.load.dying_tuner", str(server.endpoint.port), str(note)])
        assert tuner.wait(timeout=30) == -signal.SIGKILL
        client = int(note.read_text())
        if psutil.pid_exists(client):
            psutil.wait_procs([psutil.Process(client)], timeout=5)
        assert not psutil.pid_exists(client)


def test_requests_that_cannot_be_made_end_the_level_with_their_own_error() -> None:
    class Failing(tuple[RequestPlan, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[RequestPlan]:
            yield REQUEST
            raise InputError("row 2 is bad")

    with ScriptedServer(answer) as server, pytest.raises(InputError, match="row 2 is bad"):
        run_level(server.endpoint, replace(closed(1), requests=Failing()))


def test_requests_are_made_only_a_little_ahead_of_being_sent() -> None:
    made = []

    class Watched(tuple[RequestPlan, ...]):
        __slots__ = ()

        def __iter__(self) -> Iterator[RequestPlan]:
            for index in count():
                made.append(index)
                yield replace(REQUEST, index=index)

    plan = replace(closed(1), requests=Watched())
    with ScriptedServer(steps(Fault.HANG)) as server:
        run_level(server.endpoint, plan, should_stop=lambda p: "seen" if p.elapsed_s > 0.5 else None)
    # 64 in the client, and what a pipe of 64 KiB and a read of 256 KiB hold at 0.4 KiB each.
    assert 64 < len(made) < 1500


def test_long_prompts_do_not_block_the_way_to_the_client() -> None:
    """More bytes than every buffer between the two holds, and a stop that must not wait behind them."""
    spec = WorkloadSpec(input_tokens=FixedLength(tokens=50_000), output_tokens=FixedLength(tokens=1))
    plan = build_level(spec, LoadSpec(concurrency=1, warmup_s=0.0), seed=1)
    with ScriptedServer(answer) as server:
        level = run_level(server.endpoint, plan, should_stop=lambda p: "enough" if p.done > 2 else None)
    assert level.stopped == "enough"
    assert {record.prompt_tokens for record in level.requests if record.error is None} == {50_000}


def test_run_level_works_outside_the_main_thread() -> None:
    levels: list[LevelRecord] = []
    with ScriptedServer(answer) as server:
        thread = threading.Thread(target=lambda: levels.append(run_level(server.endpoint, closed(2))))
        thread.start()
        thread.join(timeout=30)
    assert len(levels[0].requests) == 2
