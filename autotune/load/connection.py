"""One keep-alive HTTP connection to the server, carrying one exchange at a time.

This is the path that keeps time: a read is stamped before anything else is done with it, and its body is kept as it
came. Everything that can wait is done after the exchange (`response`).
"""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
from collections.abc import Callable
from time import perf_counter
from typing import cast

import httptools

from autotune.load.exchange import Exchange

# A token event is 200-300 bytes; 256 MB hold a million of them. More is a server gone mad.
BODY_BYTES_MAX = 256 * 2**20
# How releases of OpenSSL name an answer that isn't TLS.
_NOT_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")


class Connection(asyncio.Protocol):
    """`on_done(connection, exchange)` is called once when an exchange ended by itself; `exchange` is None."""

    def __init__(
        self,
        on_done: Callable[[Connection, Exchange], None],
        on_lost: Callable[[Connection], None],
        *,
        body_bytes_max: int = BODY_BYTES_MAX,
    ) -> None:
        self._body_bytes_max = body_bytes_max
        self._on_done = on_done
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self.exchange: Exchange | None = None
        self.served = 0
        self.open = False
        self._framed = False
        self._complete = False
        self._keep_alive = False
        self._answered = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Turn off Nagle's delay."""
        self._transport = cast("asyncio.Transport", transport)
        self.open = True
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def send(self, exchange: Exchange) -> None:
        """Write the request of `exchange`; the connection must be open and idle."""
        assert self._transport is not None  # noqa: S101 - for the type checker
        self.exchange = exchange
        self._framed = self._complete = self._keep_alive = self._answered = False
        exchange.attempts += 1
        now = perf_counter()
        self._transport.write(exchange.request)
        if exchange.sent_s is None:
            exchange.sent_s = now

    def close(self) -> None:
        """Drop the connection at once; `on_done` is not told of an exchange in flight."""
        self.exchange = None
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes | memoryview, age_s: float = 0.0) -> None:
        """Stamp and keep what came; it reached this machine `age_s` ago."""
        now = perf_counter() - age_s
        exchange = self.exchange
        if exchange is None:  # bytes that nobody asked for: this connection can't be trusted
            self.close()
            return
        self._answered = True
        now = max(now, exchange.heard_s)  # a wall clock set back must not turn the order round
        before = len(exchange.body)
        failure = self._feed(data)
        after = len(exchange.body)
        if after > before:  # also where bad HTTP follows on good: what came, came
            exchange.read_s.append(now)
            exchange.read_ends.append(after)
        if failure is not None:
            self._give_up(failure, now)
        elif self._complete:
            self._finish(now)
        elif after > self._body_bytes_max:
            self._give_up(f"a response of more than {self._body_bytes_max} bytes", now)

    def _feed(self, data: bytes | memoryview) -> str | None:
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            return f"bad HTTP: {error}"
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange: properly if the body was to last until the close, else in error."""
        now = perf_counter()
        self.open = False
        if self.exchange is not None:
            if self.exchange.status is None or self._framed or exc is not None:
                self.exchange.error = reason(exc)
            self._finish(now)
        self._on_lost(self)

    @property
    def peer(self) -> tuple[str, int]:
        """The address that it is connected to."""
        assert self._transport is not None  # noqa: S101 - for the type checker
        host, port, *_ = self._transport.get_extra_info("peername")
        return host, port

    @property
    def stale(self) -> bool:
        """The server had closed this kept-alive connection before it saw the request: sending again is safe."""
        return not self._answered and self.served > 0

    def _give_up(self, error: str, now: float) -> None:
        if self.exchange is not None:
            self.exchange.error = error
        self._keep_alive = False
        self._finish(now)

    def _finish(self, now: float) -> None:
        exchange, self.exchange = self.exchange, None
        if exchange is None:
            return
        exchange.done_s = now
        if not self._keep_alive:
            self.close()
        self.served += self._complete
        self._on_done(self, exchange)

    # --- callbacks of httptools ---------------------------------------------------------------------------------------

    def on_header(self, name: bytes, value: bytes) -> None:
        """Note whether the response says where it ends, and when to come back."""
        match name.lower():
            case b"content-length" | b"transfer-encoding":
                self._framed = True
            case b"retry-after" if self.exchange is not None and value.strip().isdigit():  # a date is not heeded
                self.exchange.retry_after_s = float(value)

    def on_headers_complete(self) -> None:
        """Keep the status; a second response to one request ends trust in the connection."""
        if self._complete:
            self._keep_alive = False
        elif self.exchange is not None:
            self.exchange.status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        """Keep the body as it comes."""
        if self.exchange is not None and not self._complete:
            self.exchange.body += body

    def on_message_complete(self) -> None:
        """The response ended, unless it was an interim one (status 1xx)."""
        if not self._complete and self.exchange is not None and (self.exchange.status or 0) >= 200:
            self._complete = True
            self._keep_alive = self._parser.should_keep_alive()


def reason(error: Exception | None) -> str:
    """A short lower-case name for why a connection failed: `connection refused`, `connection reset by peer` …"""
    if error is None:
        return "connection closed early"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: the certificate is not trusted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        spoken = error.reason not in _NOT_TLS
        return (
            f"TLS: {(error.reason or str(error)).replace('_', ' ').lower() if spoken else 'not spoken by the server'}"
        )
    if isinstance(error, OSError) and error.errno is not None and error.errno > 0:
        return os.strerror(error.errno).lower()
    return f"{type(error).__name__}: {error}"
