"""A stand-in for somebody else's OpenAI API: real sockets, and the ways in which such servers differ from ours."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

MODEL = "some/model"
UNKNOWN_FIELDS = ("ignore_eos", "min_tokens")


RENEWED_AFTER_S = 0.3


@dataclass(kw_only=True)
class Api:
    """How it behaves, and what it saw.

    Once `limit` requests have come, every other one is refused (all, if `stubborn`) and told to wait `retry_after_s`;
    a pause of RENEWED_AFTER_S renews the limit.
    `strict` refuses fields that OpenAI's API hasn't, `text_only` token ids as a prompt; `open_list` shows its models
    without the key.
    """

    port: int = 0
    key: str | None = None
    open_list: bool = False
    limit: int | None = None
    retry_after_s: int = 0
    stubborn: bool = False
    streams: bool = True
    usage: bool = True
    strict: bool = False
    text_only: bool = False
    asked: list[dict[str, Any]] = field(default_factory=list)
    refused_s: list[float] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _came: int = 0
    _last_s: float = 0.0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"

    def refuses(self) -> bool:
        with self._lock:
            now = time.monotonic()
            self._came = 1 if now - self._last_s > RENEWED_AFTER_S else self._came + 1
            self._last_s = now
            beyond = 0 if self.limit is None else max(0, self._came - self.limit)
            over = beyond > 0 and (self.stubborn or beyond % 2 == 1)
            if over:
                self.refused_s.append(time.monotonic())
            return over


class _Server(ThreadingHTTPServer):
    request_queue_size = 64
    daemon_threads = True

    def __init__(self, api: Api) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.api = api
        api.port = self.server_port


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def api(self) -> Api:
        assert isinstance(self.server, _Server)
        return self.server.api

    def do_GET(self) -> None:
        if self.path != "/v1/models":
            self._reply(404, {"error": {"message": "no such page"}})
        elif self.api.open_list or self._allowed():
            self._reply(200, {"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if not self._allowed():
            return
        if self.api.refuses():
            wait = {"Retry-After": str(self.api.retry_after_s)}
            self._reply(429, {"error": {"message": "Rate limit reached"}}, wait)
            return
        self.api.asked.append(body)
        self._answer(body)

    def _answer(self, body: dict[str, Any]) -> None:
        odd = [name for name in UNKNOWN_FIELDS if name in body] if self.api.strict else []
        if odd:
            self._reply(400, {"error": {"message": f"Unrecognized request argument supplied: {odd[0]}"}})
        elif self.api.text_only and not isinstance(body["prompt"], str):
            self._reply(422, {"error": {"message": "prompt: Input should be a valid string"}})
        elif self.api.streams:
            self._stream(body)
        else:
            self._reply(200, {"choices": [{"index": 0, "text": "a" * body["max_tokens"]}]})

    def _allowed(self) -> bool:
        given = self.headers.get("Authorization")
        fine = self.api.key is None or given == f"Bearer {self.api.key}"
        if not fine:
            self._reply(401, {"error": {"message": f"Incorrect API key: {given}"}})
        return fine

    def _stream(self, body: dict[str, Any]) -> None:
        self._head(200, {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"})
        count = body["max_tokens"]
        for place in range(count):
            finish = "length" if place == count - 1 else None
            self._event({"choices": [{"index": 0, "text": " a", "finish_reason": finish}]})
        if self.api.usage:
            self._event({"choices": [], "usage": {"prompt_tokens": len(body["prompt"]), "completion_tokens": count}})
        self._chunk(b"data: [DONE]\n\n")
        self._chunk(b"")

    def _event(self, value: object) -> None:
        self._chunk(b"data: " + json.dumps(value).encode() + b"\n\n")

    def _chunk(self, data: bytes) -> None:
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def _reply(self, status: int, value: object, headers: dict[str, str] | None = None) -> None:
        text = json.dumps(value).encode()
        self._head(status, {"Content-Length": str(len(text)), **(headers or {})})
        self.wfile.write(text)

    def _head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """Keep quiet."""

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients may cut what they asked for
            super().handle()


@contextmanager
def serving_api(**how: Any) -> Iterator[Api]:
    """Serve until the context ends."""
    with _Server(Api(**how)) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server.api
        finally:
            server.shutdown()
            thread.join()
