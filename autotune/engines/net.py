"""Loopback ports and the little HTTP that watching an engine takes."""

from __future__ import annotations

import contextlib
import http.client
import socket
from collections.abc import Iterable

import psutil

HOST = "127.0.0.1"
HTTP_TIMEOUT_S = 5.0


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


def get(port: int, path: str, *, timeout_s: float = HTTP_TIMEOUT_S) -> tuple[int, str] | None:
    """Status and body of a GET on loopback; None when no answer came. No proxy is ever used."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        return response.status, response.read().decode(errors="replace")
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
