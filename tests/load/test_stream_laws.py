"""Laws of whole responses: HTTP and events together, from the bytes on the wire to what the record says."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load import run_level
from autotune.load.connection import Connection
from autotune.load.exchange import Exchange, unpack
from autotune.load.response import Parsed, parse
from tests.load.levels import level, request
from tests.load.scripted import DONE, Fault, Received, ScriptedServer, Step, answer, chunk, event
from tests.load.test_connection import Transport


@dataclass(frozen=True, slots=True)
class Stream:
    """A response as bytes, and what a record of it must say. `closes`: its body ends with the connection."""

    data: bytes
    closes: bool
    expected: Parsed


@st.composite
def bodies(draw: st.DrawFn) -> tuple[bytes, Parsed]:
    """An answer of any server in the field: completions or chat, usage at the end, with each event or not at all."""
    chat, counts, done = draw(st.booleans()), draw(st.sampled_from(["end", "each", "none"])), draw(st.booleans())
    texts = draw(st.lists(st.sampled_from([" a", "é", "水", "🙂", ""]), min_size=1, max_size=6))
    sizes = [draw(st.integers(1, 4)) for _ in texts]
    events = [event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})] if chat else []
    total = 0
    for place, (text, size) in enumerate(zip(texts, sizes, strict=True)):
        total += size
        finish = "length" if place == len(texts) - 1 else None
        said = {draw(st.sampled_from(["content", "reasoning_content", "reasoning"])): text or "x"}
        choice = {"delta": said} if chat else {"text": text or "x"}
        usage = {"prompt_tokens": 7, "completion_tokens": total} if counts == "each" else None
        events.append(event({"choices": [choice | {"finish_reason": finish}], "usage": usage}))
        if draw(st.booleans()):
            events.append(draw(st.sampled_from([b": ping\n\n", b"\n\n", b"event: x\nid: 1\n\n"])))
    if counts == "end":
        events.append(event({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": total}}))
    body = b"".join([*events, DONE] if done else events)
    known = counts != "none"
    return body.replace(b"\n", draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))), Parsed(
        chunk_s=[0.0] * len(texts),
        chunk_tokens=sizes if counts == "each" else [],
        prompt_tokens=7 if known else None,
        output_tokens=total if known else None,
        finish_reason="length",
    )


@st.composite
def streams(draw: st.DrawFn) -> Stream:
    body, expected = draw(bodies())
    framing = draw(st.sampled_from(["chunked", "sized", "closes"]))
    head = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    if framing == "sized":
        data = head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    elif framing == "closes":
        data = head + b"\r\n" + body
    else:
        edges = sorted({0, len(body), *draw(st.lists(st.integers(0, len(body)), max_size=6))})
        data = head + b"Transfer-Encoding: chunked\r\n\r\n"
        data += b"".join(chunk(body[a:b]) for a, b in pairwise(edges)) + b"0\r\n\r\n"
    return Stream(data, framing == "closes", expected)


def hear(data: bytes, cuts: list[int], *, close: bool) -> tuple[Exchange, Parsed]:
    """Answer a request with `data`, cut into reads; then close the connection if it is to be closed."""
    done: list[Exchange] = []
    connection = Connection(lambda _, exchange: done.append(exchange), lambda _: None)
    transport = Transport()
    connection.connection_made(transport)
    transport._socket.close()
    exchange = Exchange(index=0, due_s=perf_counter(), request=b"POST")
    connection.send(exchange)
    buffer = bytearray(len(data) or 1)
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    for start, end in pairwise(edges):
        if connection.open:
            buffer[: end - start] = data[start:end]  # as on the wire: used again for the next read
            connection.data_received(
                memoryview(buffer)[: end - start], age_s=end * 7919 % 13
            )  # a wall clock that jumps
    if close and connection.open:
        connection.connection_lost(None)
    assert len(done) <= 1
    return exchange, parse(unpack(*exchange.packed(0.0)))


@given(streams(), st.lists(st.integers(1, 4000), max_size=60))
def test_any_cutting_of_a_valid_stream_gives_the_record_of_what_it_says(stream: Stream, cuts: list[int]) -> None:
    exchange, parsed = hear(stream.data, cuts, close=stream.closes)
    assert exchange.done_s is not None
    assert list(exchange.read_s) == sorted(exchange.read_s)
    assert parsed.chunk_s == sorted(parsed.chunk_s)
    assert set(parsed.chunk_s) <= set(exchange.read_s)
    assert replace(parsed, chunk_s=[0.0] * len(parsed.chunk_s)) == stream.expected


@given(streams(), st.data())
def test_a_stream_that_breaks_off_is_an_error_or_had_ended(stream: Stream, data: st.DataObject) -> None:
    """Whatever came before keeps its tokens; only what had said its finish reason or [DONE] counts as a success."""
    end = data.draw(st.integers(0, len(stream.data) - 1))
    _, parsed = hear(stream.data[:end], [], close=True)
    assert len(parsed.chunk_s) <= len(stream.expected.chunk_s)
    if parsed.error is None:
        assert len(parsed.chunk_s) == len(stream.expected.chunk_s)


@given(streams(), st.data())
def test_an_error_event_inside_a_200_is_an_error_wherever_it_stands(stream: Stream, data: st.DataObject) -> None:
    body = b'data: {"choices": [{"text": "a"}]}\n\ndata: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
    framed = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % (len(body) + len(DONE)) + body + DONE
    _, parsed = hear(framed, data.draw(st.lists(st.integers(1, len(framed)), max_size=20)), close=False)
    assert parsed.error == "server error: EngineCore died"
    assert len(parsed.chunk_s) == 1


SPLICES = st.one_of(
    st.binary(max_size=20),
    st.sampled_from([b"\r\n", b"\n\n", b"0\r\n\r\n", b"ffffffffffffffff\r\n", b"-1\r\n", b"HTTP/1.1 200 OK\r\n\r\n"]),
    st.sampled_from([b"Content-Length: 5\r\n", b"Transfer-Encoding: gzip, chunked\r\n", b"Connection: upgrade\r\n"]),
    st.sampled_from([b"\x00", b"\xff\xfe", b"data: ", b"data: [DONE]\n\n", b"{" * 50]),
)


@st.composite
def hostile(draw: st.DrawFn) -> bytes:
    """A valid response, parts of which are overwritten, lost or doubled."""
    data = draw(streams()).data
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 40)))
        data = data[:start] + draw(SPLICES) + data[end:]
    return data


@given(hostile(), st.lists(st.integers(1, 4000), max_size=20))
def test_a_hostile_response_ends_in_a_record_and_never_in_an_exception(data: bytes, cuts: list[int]) -> None:
    exchange, parsed = hear(data, cuts, close=True)
    assert exchange.done_s is not None
    assert exchange.done_s >= (exchange.sent_s or 0.0)
    assert parsed.error is not None or parsed.chunk_s


@pytest.mark.integration
def test_the_client_outlives_a_server_that_sends_anything() -> None:
    """Over real sockets: every request has its record, and the honest answers among the garbage are successes."""
    rng = random.Random(7)
    good = b"".join(
        step
        for step in answer(Received(number=0, connection=0, path="", headers={}, body={"max_tokens": 3}))
        if isinstance(step, bytes)
    )

    def script(received: Received) -> Iterator[Step]:
        if received.number % 5 == 0:
            yield good
            return
        data = bytearray(good)
        for _ in range(rng.randint(1, 8)):
            place = rng.randrange(len(data))
            data[place : place + rng.randint(0, 20)] = rng.randbytes(rng.randint(0, 20))
        for start in range(0, len(data), 50):
            yield bytes(data[start : start + 50])
        yield rng.choice([Fault.CLOSE, Fault.RESET])

    plan = [request(index, at_s=index * 0.004) for index in range(250)]
    with ScriptedServer(script) as server:
        record = run_level(server.endpoint, level(plan, duration_s=2.0))
    assert [one.index for one in record.requests] == list(range(250))
    assert all(one.error is not None or one.chunk_s for one in record.requests)
    assert all(one.done_s is not None for one in record.requests)  # none was waited for until the level's end
    assert sum(one.error is None for one in record.requests) >= 50
    assert sum(one.error is not None for one in record.requests) >= 100
