"""Plain TCP with the kernel's times: what is read late still has the time at which it came."""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from collections.abc import Awaitable, Callable, Iterator

import pytest
import uvloop

from autotune.load import wire

SO_TIMESTAMPNS = 35  # absent from Python's socket module


class Reads:
    """Remembers what it is told; `heard` is set at every read, `lost` when the connection is gone."""

    def __init__(self) -> None:
        self.reads: list[tuple[bytes, float, float]] = []
        self.heard = asyncio.Event()
        self.lost: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None: ...

    def data_received(self, data: bytes | memoryview, age_s: float = 0.0) -> None:
        self.reads.append((bytes(data), time.perf_counter(), age_s))
        self.heard.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set_result(exc)


def talk(play: Callable[[wire.Wire, Reads, socket.socket], Awaitable[None]]) -> Reads:
    """Connect to a socket of this process and play; returns what was read."""

    async def main() -> Reads:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            reads = Reads()
            line = await wire.connect(listener.getsockname(), reads, memoryview(bytearray(wire.READ_BYTES)))
            peer, _ = listener.accept()
            with peer:
                await play(line, reads, peer)
            line.abort()
            await reads.lost
            return reads

    return uvloop.run(asyncio.wait_for(main(), 20))


@pytest.fixture
def stamping() -> Iterator[None]:
    """A kernel that stamps: it begins a moment after the first socket wants it, and ends with the last one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        probe.setsockopt(socket.SOL_SOCKET, SO_TIMESTAMPNS, 1)
        deadline = time.monotonic() + 10
        while time.monotonic() < deadline:
            probe.sendto(b"?", probe.getsockname())
            if probe.recvmsg(1, 64)[1]:
                break
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's times of arrival are Linux's")
def test_bytes_that_wait_have_the_time_at_which_they_came(stamping: None) -> None:
    sent_at: list[float] = []

    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        sent_at.append(time.perf_counter())
        peer.sendall(b"token")
        sent_at.append(time.perf_counter())
        time.sleep(0.2)  # noqa: ASYNC251 - the loop is busy: with other connections, or the engine has its core
        await reads.heard.wait()

    ((data, read_at, age_s),) = talk(play).reads
    assert data == b"token"
    assert read_at - sent_at[1] > 0.19
    assert sent_at[0] - 0.001 < read_at - age_s < sent_at[1] + 0.05


def test_more_than_the_kernel_takes_at_once_arrives_whole() -> None:
    body = bytes(range(256)) * 40_000
    got = bytearray()

    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        line.write(body)
        peer.setblocking(False)
        while len(got) < len(body):
            got.extend(await asyncio.get_running_loop().sock_recv(peer, 2**16))

    talk(play)
    assert bytes(got) == body


@pytest.mark.parametrize(("reset", "error"), [(False, type(None)), (True, ConnectionResetError)])
def test_the_end_of_the_other_side_is_told_once(reset: bool, error: type) -> None:
    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        if reset:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert isinstance(await reads.lost, error)

    assert talk(play).reads == []


def test_data_and_a_reset_that_come_together_are_both_told() -> None:
    """As when an engine dies: its last tokens and its end are there before the client looks."""

    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        peer.sendall(b"token")
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert isinstance(await reads.lost, ConnectionResetError)

    assert [data for data, *_ in talk(play).reads] == [b"token"]


def test_what_a_server_said_before_it_closed_is_read_though_writing_failed() -> None:
    """A server that refuses a long prompt answers and closes while the rest is still on its way."""

    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        peer.sendall(b"HTTP/1.1 413 Too Long\r\n\r\n")
        peer.close()
        line.write(b"x")  # is answered by a reset
        line.write(b"y")  # fails
        await reads.lost

    assert [data for data, *_ in talk(play).reads] == [b"HTTP/1.1 413 Too Long\r\n\r\n"]


def test_a_connection_that_was_lost_a_moment_ago_takes_no_harm_from_a_write() -> None:
    """The pool hears of it at the loop's next turn."""

    async def play(line: wire.Wire, reads: Reads, peer: socket.socket) -> None:
        line.abort()
        line.write(b"x")
        assert await reads.lost is None

    assert talk(play).reads == []


def test_a_host_without_a_server_is_an_error() -> None:
    async def main(port: int) -> None:
        await wire.connect(("127.0.0.1", port), Reads(), memoryview(bytearray(1)))

    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    with pytest.raises(ConnectionRefusedError):
        uvloop.run(main(port))
