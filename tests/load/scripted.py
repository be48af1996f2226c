"""A server that answers each request with a script: bytes, pauses and faults over real sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from autotune.records.trial import Endpoint


class Fault(Enum):
    CLOSE = "close"  # in order: FIN
    RESET = "reset"  # RST
    HANG = "hang"  # nothing more until the client leaves


Step = bytes | float | Fault
"""What a script does next: send bytes, pause so many seconds, or fail."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    number: int
    connection: int
    path: str
    headers: dict[str, str]
    body: dict[str, Any]


Script = Callable[[Received], Iterable[Step]]


class ScriptedServer:
    """Listens on loopback in a thread while its context is open."""

    def __init__(self, script: Script) -> None:
        self.received: list[Received] = []
        self.connections = 0
        self.in_flight = 0
        self.most_in_flight = 0
        self._script = script
        self._socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run)

    @property
    def endpoint(self) -> Endpoint:
        return Endpoint(host="127.0.0.1", port=self._socket.getsockname()[1], model_name="tiny")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._main.cancel)
        self._thread.join()
        self._socket.close()

    def _run(self) -> None:
        self._main = self._loop.create_task(self._accept())
        with contextlib.suppress(asyncio.CancelledError):
            self._loop.run_until_complete(self._main)
        self._loop.close()

    async def _accept(self) -> None:
        self._socket.setblocking(False)
        async with asyncio.TaskGroup() as group:
            while True:
                peer, _ = await self._loop.sock_accept(self._socket)
                self.connections += 1
                group.create_task(self._serve(peer, self.connections))

    async def _serve(self, peer: socket.socket, connection: int) -> None:
        peer.setblocking(False)
        peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with peer, contextlib.suppress(ConnectionError):
            while (received := await self._read(peer, connection)) is not None:
                self.received.append(received)
                self.in_flight += 1
                self.most_in_flight = max(self.most_in_flight, self.in_flight)
                try:
                    if not await self._play(peer, received):
                        return
                finally:
                    self.in_flight -= 1

    async def _read(self, peer: socket.socket, connection: int) -> Received | None:
        data = b""
        while b"\r\n\r\n" not in data:
            if not (more := await self._loop.sock_recv(peer, 65536)):
                return None
            data += more
        head, _, body = data.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        while len(body) < int(headers["content-length"]):
            body += await self._loop.sock_recv(peer, 65536)
        return Received(
            number=len(self.received),
            connection=connection,
            path=first.split(" ")[1],
            headers=headers,
            body=json.loads(body),
        )

    async def _play(self, peer: socket.socket, received: Received) -> bool:
        """Returns whether the connection stays."""
        for step in self._script(received):
            if isinstance(step, bytes):
                await self._loop.sock_sendall(peer, step)
            elif isinstance(step, float):
                await asyncio.sleep(step)
            elif step is Fault.HANG:
                await self._loop.sock_recv(peer, 1)
                return False
            else:
                if step is Fault.RESET:
                    peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return False
        return True


HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST_CHUNK = b"0\r\n\r\n"


def event(value: object) -> bytes:
    """One server-sent event."""
    return b"data: " + (value if isinstance(value, bytes) else json.dumps(value).encode()) + b"\n\n"


DONE = event(b"[DONE]")


def token(text: str = " a", finish: str | None = None) -> bytes:
    return event({"choices": [{"index": 0, "text": text, "finish_reason": finish}], "usage": None})


def delta(finish: object = None, **said: object) -> bytes:
    return event({"choices": [{"index": 0, "delta": said, "finish_reason": finish}]})


def usage(prompt: int, output: int, cached: int | None = None) -> bytes:
    details = {} if cached is None else {"prompt_tokens_details": {"cached_tokens": cached}}
    return event({"choices": [], "usage": {"prompt_tokens": prompt, "completion_tokens": output, **details}})


def chunk(data: bytes) -> bytes:
    """One chunk of HTTP's chunked encoding."""
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


def answer(received: Received, *, pause_s: float = 0.0) -> Iterator[Step]:
    """A proper completion of the length asked for, pausing before each token."""
    count = received.body["max_tokens"]
    yield HEAD
    for place in range(count):
        if pause_s:
            yield pause_s
        yield chunk(token(finish="length" if place == count - 1 else None))
    yield chunk(usage(len(received.body.get("prompt", ())), count)) + chunk(DONE) + LAST_CHUNK
