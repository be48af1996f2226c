"""TLS: certificates are verified, by the system's store or SSL_CERT_FILE; what fails is said in words."""

from __future__ import annotations

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import trustme

from autotune.load import probe, run_level
from autotune.records.trial import Endpoint
from tests.load.levels import errors, level, request
from tests.load.scripted import DONE, HEAD, LAST_CHUNK, chunk, token

pytestmark = pytest.mark.integration

ANSWER = HEAD + chunk(token()) + chunk(token()) + chunk(token(finish="length")) + chunk(DONE) + LAST_CHUNK


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificates:
    """PEM files made for one test: the authority that vouches, and a server's certificate with its key."""

    authority: str
    server: str


@pytest.fixture
def certificates(tmp_path: Path, request: pytest.FixtureRequest) -> Certificates:
    """For 127.0.0.1, or for the host that the test's parameter names."""
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "authority.pem")
    issued = authority.issue_cert(getattr(request, "param", "127.0.0.1"))
    issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    return Certificates(authority=str(tmp_path / "authority.pem"), server=str(tmp_path / "server.pem"))


@contextlib.contextmanager
def https(certificate: str) -> Iterator[Endpoint]:
    """A server that answers every request on every connection with three tokens."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate)
    listener = socket.create_server(("127.0.0.1", 0))

    def serve(peer: socket.socket) -> None:
        with contextlib.suppress(OSError), peer, context.wrap_socket(peer, server_side=True) as line:
            head = b""
            while data := line.recv(65536):
                head += data
                if b"\r\n\r\n" in head:
                    line.sendall(ANSWER)
                    head = b""

    def accept() -> None:
        with contextlib.suppress(OSError):
            while True:
                threading.Thread(target=serve, args=(listener.accept()[0],), daemon=True).start()

    accepting = threading.Thread(target=accept, daemon=True)
    accepting.start()
    yield Endpoint(host="127.0.0.1", port=listener.getsockname()[1], model_name="tiny", tls=True)
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    accepting.join()


def test_a_level_over_tls(monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
    with https(certificates.server) as endpoint:
        record = run_level(endpoint, level([request(i) for i in range(6)], concurrency=2))
    assert errors(record) == {None}
    assert [len(one.chunk_s) for one in record.requests] == [3] * 6


def test_a_certificate_that_nobody_vouches_for_is_refused(
    monkeypatch: pytest.MonkeyPatch, certificates: Certificates
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    with https(certificates.server) as endpoint:
        record = probe(endpoint, request(0), 20.0)
    assert record.error == "TLS: the certificate is not trusted: unable to get local issuer certificate"
    assert record.status is None


@pytest.mark.parametrize("certificates", ["other.example"], indirect=True)
def test_a_certificate_of_another_host_is_refused(monkeypatch: pytest.MonkeyPatch, certificates: Certificates) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", certificates.authority)
    with https(certificates.server) as endpoint:
        record = probe(endpoint, request(0), 20.0)
    assert (record.error or "").startswith("TLS: the certificate is not trusted: IP address mismatch")


def test_a_server_without_tls_is_named_as_such() -> None:
    def talk(listener: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while True:
                with listener.accept()[0] as peer:
                    peer.recv(65536)
                    peer.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as listener:
        talking = threading.Thread(target=talk, args=(listener,))
        talking.start()
        endpoint = Endpoint(host="127.0.0.1", port=listener.getsockname()[1], model_name="tiny", tls=True)
        record = probe(endpoint, request(0), 20.0)
        listener.shutdown(socket.SHUT_RDWR)
        talking.join()
    assert record.error == "TLS: not spoken by the server"
