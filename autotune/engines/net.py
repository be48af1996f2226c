"""Loopback ports and the little HTTP that watching an engine takes."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterable

import psutil

HOST = "127.0.0.1"
HTTP_TIMEOUT_S = 5.0
MAX_PAGE_BYTES = 8 * 2**20  # a /metrics page of vLLM has 56 kB, a few times that with many engines


def fresh_port() -> int:
    """A loopback port that was free a moment ago; engines bind it themselves, so take it just before the launch."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def port_free(port: int) -> bool:
    """True when nothing holds the port; connections that linger after their server has ended don't count."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def listens(processes: Iterable[psutil.Process], port: int) -> bool:
    """True when one of `processes` owns the listening socket on `port`."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if any(_is_listener(connection, port) for connection in process.net_connections("tcp")):
                return True
    return False


def _is_listener(connection: psutil._ntuples.pconn, port: int) -> bool:
    return connection.status == psutil.CONN_LISTEN and connection.laddr[1] == port


def get(
    port: int, path: str, *, timeout_s: float = HTTP_TIMEOUT_S, api_key: str | None = None
) -> tuple[int, str] | None:
    """Status and body of a GET on loopback; None when no answer came. No proxy is ever used."""
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return response.status, read_page(response, timeout_s).decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


def read_page(response: http.client.HTTPResponse, timeout_s: float = HTTP_TIMEOUT_S) -> bytes:
    """The body, however it drips: raises TimeoutError after `timeout_s`, HTTPException beyond MAX_PAGE_BYTES."""
    deadline, parts, size = time.monotonic() + timeout_s, list[bytes](), 0
    while part := response.read1(2**16):
        parts.append(part)
        size += len(part)
        if size > MAX_PAGE_BYTES:
            raise http.client.HTTPException(f"a page of more than {MAX_PAGE_BYTES} bytes")
        if time.monotonic() > deadline:
            raise TimeoutError(f"the page was not complete after {timeout_s:g} s")
    if response.length:
        raise http.client.IncompleteRead(b"".join(parts), response.length)
    return b"".join(parts)
