"""One connection: HTTP in any pieces, keep-alive, broken servers; over a transport that only takes notes."""

from __future__ import annotations

import asyncio
import socket
from itertools import pairwise
from time import perf_counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.connection import BODY_BYTES_MAX, Connection, reason
from autotune.load.exchange import Exchange, unpack
from tests.load.scripted import DONE, HEAD, LAST_CHUNK, chunk, token

BODY = token("é") + token("b", "length") + DONE
CHUNKED = HEAD + chunk(BODY[:9]) + chunk(BODY[9:]) + LAST_CHUNK
SIZED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY


class Transport(asyncio.Transport):
    """Takes writes; remembers whether it was aborted."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.aborted = False
        self._socket = socket.socket()

    def get_extra_info(self, name: str, default: object = None) -> object:
        return self._socket

    def write(self, data: object) -> None:
        assert isinstance(data, bytes)
        self.written += data

    def abort(self) -> None:
        self.aborted = True
        self._socket.close()


class Line:
    """A connection on such a transport, and what it reported."""

    def __init__(self, body_bytes_max: int = BODY_BYTES_MAX) -> None:
        self.done: list[Exchange] = []
        self.lost = 0
        self.connection = Connection(
            lambda _, exchange: self.done.append(exchange), lambda _: self.lose(), body_bytes_max=body_bytes_max
        )
        self.transport = Transport()
        self.connection.connection_made(self.transport)
        self.transport._socket.close()

    def lose(self) -> None:
        self.lost += 1

    def ask(self) -> Exchange:
        exchange = Exchange(index=len(self.done), due_s=perf_counter(), request=b"POST")
        self.connection.send(exchange)
        return exchange

    def hear(self, data: bytes, cuts: list[int] | None = None) -> None:
        edges = sorted({0, *(cuts or ()), len(data)})
        for start, end in pairwise(edges):
            self.connection.data_received(data[start:end])


@given(st.sampled_from([CHUNKED, SIZED]), st.data())
def test_any_cutting_of_a_response_gives_the_same_body(response: bytes, data: st.DataObject) -> None:
    line = Line()
    exchange = line.ask()
    line.hear(response, data.draw(st.lists(st.integers(1, len(response)), max_size=30)))
    assert line.done == [exchange]
    assert (exchange.status, bytes(exchange.body), exchange.error) == (200, BODY, None)
    assert exchange.read_ends[-1] == len(BODY)
    assert list(exchange.read_s) == sorted(exchange.read_s)
    assert line.connection.open


def test_a_connection_is_used_again() -> None:
    line = Line()
    for _ in range(3):
        line.ask()
        line.hear(CHUNKED)
    assert [bytes(exchange.body) for exchange in line.done] == [BODY] * 3
    assert line.transport.written == b"POST" * 3
    assert not line.transport.aborted


def test_a_server_that_says_close_is_left() -> None:
    line = Line()
    line.ask()
    line.hear(CHUNKED.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
    assert line.done[0].error is None
    assert line.transport.aborted
    assert not line.connection.open


def test_an_interim_response_is_passed_over() -> None:
    line = Line()
    exchange = line.ask()
    line.hear(b"HTTP/1.1 100 Continue\r\n\r\n" + SIZED)
    assert (exchange.status, bytes(exchange.body)) == (200, BODY)


def test_a_second_response_to_one_request_does_not_count_and_ends_the_connection() -> None:
    line = Line()
    exchange = line.ask()
    line.hear(SIZED + b"HTTP/1.1 500 No\r\nContent-Length: 2\r\n\r\nno")
    assert (exchange.status, bytes(exchange.body)) == (200, BODY)
    assert line.transport.aborted


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    line = Line()
    line.hear(SIZED)
    assert line.transport.aborted
    assert not line.done


def test_a_body_without_a_length_ends_with_the_connection() -> None:
    line = Line()
    exchange = line.ask()
    line.hear(b"HTTP/1.1 200 OK\r\n\r\n" + BODY)
    assert not line.done
    line.connection.connection_lost(None)
    assert line.done == [exchange]
    assert exchange.error is None
    assert line.lost == 1


@pytest.mark.parametrize("sent", [b"", b"HTTP/1.1 200", HEAD, CHUNKED[:-5], SIZED[:-1]])
def test_a_connection_closed_early_is_an_error(sent: bytes) -> None:
    line = Line()
    exchange = line.ask()
    if sent:
        line.hear(sent)
    line.connection.connection_lost(None)
    assert exchange.error == "connection closed early"
    assert exchange.done_s is not None


def test_only_a_used_connection_that_never_answered_was_stale() -> None:
    fresh, used, answering = Line(), Line(), Line()
    for line in (used, answering):
        line.ask()
        line.hear(CHUNKED)
    for line in (fresh, used, answering):
        line.ask()
    answering.hear(b"HTTP")
    for line in (fresh, used, answering):
        line.connection.connection_lost(ConnectionResetError(104, "reset"))
    assert [line.connection.stale for line in (fresh, used, answering)] == [False, True, False]
    assert used.done[-1].error == "connection reset by peer"


@given(st.lists(st.binary(max_size=40) | st.sampled_from([HEAD, BODY, CHUNKED, b"\r\n", b"ff\r\n"]), max_size=6))
def test_a_hostile_server_gets_one_end_and_never_an_exception(pieces: list[bytes]) -> None:
    line = Line()
    exchange = line.ask()
    for piece in filter(None, pieces):
        line.hear(piece)
    line.connection.connection_lost(None)
    assert line.done == [exchange]
    assert exchange.error is not None or exchange.status is not None


def test_an_upgrade_is_refused() -> None:
    line = Line()
    exchange = line.ask()
    line.hear(b"HTTP/1.1 101 Switching\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\nxx")
    assert (exchange.error or "").startswith("bad HTTP")


def test_an_endless_response_is_cut_off() -> None:
    line = Line(body_bytes_max=1000)
    exchange = line.ask()
    line.hear(HEAD)
    while not line.done:
        line.hear(chunk(b"x" * 300))
    assert exchange.error == "a response of more than 1000 bytes"
    assert line.transport.aborted


def test_an_exchange_crosses_the_pipe_whole() -> None:
    line = Line()
    exchange = line.ask()
    line.hear(CHUNKED, [len(HEAD) + 8, len(CHUNKED) - 9])
    meta, payload = exchange.packed(exchange.due_s)
    response = unpack(meta, payload)
    assert (response.status, response.body, response.error) == (200, BODY, None)
    assert list(response.read_ends) == list(exchange.read_ends)
    assert response.read_s == [stamp - exchange.due_s for stamp in exchange.read_s]
    assert 0 <= meta["sent_s"] <= response.read_s[0] <= response.read_s[-1] == meta["done_s"]


def test_reasons_are_short() -> None:
    assert reason(ConnectionRefusedError(111, "Connect call failed")) == "connection refused"
    assert reason(socket.gaierror(-2, "Name or service not known")).endswith("Name or service not known")
    assert reason(None) == "connection closed early"
