"""The connections of one level: as many as it needs, kept alive and used again."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from time import perf_counter

from autotune.load import wire
from autotune.load.connection import Connection, reason
from autotune.load.exchange import Exchange

# A host that doesn't answer at all (a firewall that drops) would hold the level up before its first request.
_PREPARE_MAX_S = 5.0


class Pool:
    """Sends exchanges on idle or new connections; `on_ended` is called once for each that ended by itself."""

    def __init__(self, host: str, port: int, *, tls: bool, on_ended: Callable[[Exchange], None]) -> None:
        self._host = host
        self._address = (host, port)
        # Certificates are always verified: by the system's store, or what SSL_CERT_FILE and SSL_CERT_DIR name.
        self._tls = ssl.create_default_context() if tls else None
        self._buffer = memoryview(bytearray(wire.READ_BYTES))  # for every read: it is done with before the next
        self._on_ended = on_ended
        self._loop = asyncio.get_running_loop()
        self._connections: set[Connection] = set()
        self._idle: list[Connection] = []
        self._opening: set[asyncio.Task[None]] = set()
        self._spare_opening = False
        self._closed = False

    def send(self, exchange: Exchange) -> None:
        """Send now on the connection used last, else on a new one as soon as that is open."""
        while self._idle:
            connection = self._idle.pop()
            if connection.open:
                connection.send(exchange)
                return
        self._start(self._connect(exchange))

    def prepare(self, count: int, then: Callable[[], None]) -> None:
        """Open `count` connections, then call `then`, however that went: requests will tell what is wrong."""

        async def opening() -> None:
            connecting = [self._start(self._connect(None)) for _ in range(count)]
            if connecting:
                await asyncio.wait(connecting, timeout=_PREPARE_MAX_S)
            then()

        self._start(opening())

    def hold_spare(self) -> None:
        """Open a connection for the next request while there is time, if none is idle."""
        if not self._idle and not self._spare_opening:
            self._spare_opening = True
            self._start(self._connect(None))

    def close(self) -> None:
        """Drop every connection; nothing in flight is told of."""
        self._closed = True
        for connection in list(self._connections):
            connection.close()
        for task in self._opening:
            task.cancel()

    def _start(self, opening: Coroutine[None, None, None]) -> asyncio.Task[None]:
        task = self._loop.create_task(opening)
        self._opening.add(task)
        task.add_done_callback(self._opened)
        return task

    def _opened(self, task: asyncio.Task[None]) -> None:
        self._opening.discard(task)
        if not task.cancelled():
            task.result()  # a bug in there must end the client, not hang it

    async def _connect(self, exchange: Exchange | None) -> None:
        """Open a connection for `exchange`, or a spare one."""
        begun_s = perf_counter()
        try:
            connection = await self._connection()
        except OSError as error:
            if exchange is not None:
                exchange.fail(reason(error), begun_s)
                self._on_ended(exchange)
        else:
            if self._closed:
                connection.close()
            elif exchange is None:
                self._idle.append(connection)
            else:
                connection.send(exchange)
        finally:
            self._spare_opening &= exchange is not None

    async def _connection(self) -> Connection:
        connection = Connection(self._on_done, self._on_lost)
        if self._tls is None:
            await wire.connect(self._address, connection, self._buffer)
        else:
            await self._loop.create_connection(
                lambda: connection, *self._address, ssl=self._tls, server_hostname=self._host
            )
        self._address = connection.peer  # later connections skip the look-up of the name
        self._connections.add(connection)
        return connection

    def _on_done(self, connection: Connection, exchange: Exchange) -> None:
        if connection.stale and exchange.attempts == 1:
            exchange.error = exchange.done_s = None
            self._start(self._connect(exchange))
            return
        if connection.open:
            self._idle.append(connection)
        self._on_ended(exchange)

    def _on_lost(self, connection: Connection) -> None:
        self._connections.discard(connection)
        if connection in self._idle:
            self._idle.remove(connection)
