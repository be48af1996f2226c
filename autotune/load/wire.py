"""A plain TCP connection whose reads carry the time at which the kernel had the bytes.

An event loop gets to a socket late when many are readable at once, or when the engine has its core: the kernel's stamp
doesn't mind. asyncio's transports don't pass it on, hence this one. It also sends at once, where uvloop's transport
waits for the end of the loop's turn. docs/load.md says what that is worth.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import sys
import time
from contextlib import ExitStack
from typing import Any, Protocol

READ_BYTES = 2**18
# Linux on 64 bit; absent from Python's socket module. Elsewhere reads are stamped when the loop gets to them.
_SO_TIMESTAMPNS = 35 if sys.platform == "linux" and sys.maxsize > 2**32 else None
_TIMESPEC = struct.Struct("qq")
_ANCILLARY_BYTES = socket.CMSG_SPACE(_TIMESPEC.size)
# An older stamp comes from a wall clock that was set while the bytes lay there.
_AGE_MAX_S = 60.0


class Reader(Protocol):
    """Who gets the bytes: asyncio's protocol, but told how old they are."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """It is open."""

    def data_received(self, data: bytes | memoryview, age_s: float = 0.0) -> None:
        """`data`, valid during the call, reached this machine `age_s` ago."""

    def connection_lost(self, exc: Exception | None) -> None:
        """It is closed: by the other end, by `abort` (None), or by an error."""


class Wire(asyncio.Transport):
    """Reads for `reader` and writes from the event loop until it is lost or aborted."""

    def __init__(self, sock: socket.socket, peer: tuple[Any, ...], reader: Reader, buffer: memoryview) -> None:
        super().__init__({"socket": sock, "peername": peer})
        self._loop = asyncio.get_running_loop()
        self._socket = sock
        self._reader = reader
        self._buffer = buffer
        self._unsent = memoryview(b"")
        self._closed = False
        if _SO_TIMESTAMPNS is not None:
            sock.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        reader.connection_made(self)
        self._loop.add_reader(sock, self._readable)

    def write(self, data: Any) -> None:  # noqa: ANN401 - any buffer, as asyncio has it
        """Send now what the kernel takes and the rest when it takes more; one message at a time."""
        self._unsent = memoryview(data)
        if not self._closed and not self._send():
            self._loop.add_writer(self._socket, self._writable)

    def abort(self) -> None:
        """Close at once; `connection_lost` follows."""
        self._lose(None)

    def _writable(self) -> None:
        if self._send():
            self._loop.remove_writer(self._socket)

    def _send(self) -> bool:
        """Whether nothing is left to send."""
        try:
            sent = self._socket.send(self._unsent)
        except BlockingIOError:
            sent = 0
        except OSError:  # the other end is gone: reading tells what it said before, and why
            sent = len(self._unsent)
        self._unsent = self._unsent[sent:]
        return not self._unsent

    def _readable(self) -> None:
        """Read all that is there: when the other end resets, libuv tells once and stops watching."""
        while not self._closed:
            try:
                size, ancillary, _, _ = self._socket.recvmsg_into([self._buffer], _ANCILLARY_BYTES)
            except BlockingIOError:
                return
            except OSError as error:
                self._lose(error)
                return
            if size:
                self._reader.data_received(self._buffer[:size], _age_s(ancillary))
            else:
                self._lose(None)

    def _lose(self, error: Exception | None) -> None:
        if self._closed:
            return
        self._closed = True
        self._loop.remove_reader(self._socket)
        self._loop.remove_writer(self._socket)
        self._socket.close()
        self._loop.call_soon(self._reader.connection_lost, error)


async def connect(address: tuple[str, int], reader: Reader, buffer: memoryview) -> Wire:
    """Connect to the first of the host's addresses that answers. Raises OSError, that of the last one tried."""
    loop = asyncio.get_running_loop()
    host, port = address
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failure: OSError = ConnectionRefusedError(f"{host} has no address")
    for family, kind, protocol, _, place in found:
        with ExitStack() as on_failure:
            sock = socket.socket(family, kind, protocol)
            on_failure.callback(sock.close)
            sock.setblocking(False)
            try:
                await loop.sock_connect(sock, place)
            except OSError as error:
                failure = error
            else:
                on_failure.pop_all()
                return Wire(sock, place, reader, buffer)
    raise failure


def _age_s(ancillary: list[tuple[int, int, bytes]]) -> float:
    """How long ago the last of the bytes read arrived; 0 where the kernel doesn't tell."""
    for level, kind, data in ancillary:
        if level == socket.SOL_SOCKET and kind == _SO_TIMESTAMPNS:
            seconds, nanoseconds = _TIMESPEC.unpack(data)
            age_s = time.time() - (seconds + nanoseconds * 1e-9)
            return age_s if 0.0 < age_s < _AGE_MAX_S else 0.0
    return 0.0
