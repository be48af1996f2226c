"""Tiny HTTP servers that answer GETs by a script, for what a running server may say of itself."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Pages:
    """What is served: path to (status, text). `seen` are the Authorization headers that came, by path."""

    port: int
    pages: Mapping[str, tuple[int, str]]
    seen: dict[str, str | None] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def models(*names: str, **more: Any) -> tuple[int, str]:
    """A list of models as /v1/models gives it."""
    return 200, json.dumps({"object": "list", "data": [{"id": name, "object": "model", **more} for name in names]})


@contextmanager
def serving(pages: Mapping[str, tuple[int, str]]) -> Iterator[Pages]:
    """Serve until the context ends; the port then refuses."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            served.seen[self.path] = self.headers.get("Authorization")
            status, text = pages.get(self.path, (404, "<html>not here</html>"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        served = Pages(port=server.server_port, pages=pages)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield served
        finally:
            server.shutdown()
            thread.join()
