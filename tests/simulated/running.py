"""Starts the simulated server as a real process and talks to it over real sockets."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

MODEL = "meta-llama/Llama-3.1-8B-Instruct"
DEADLINE_S = 20.0
JSON = {"Content-Type": "application/json"}


def wait_until(condition: Callable[[], bool], pause: threading.Event | None = None) -> None:
    """Return when the condition holds; fails at the deadline."""
    end = time.monotonic() + DEADLINE_S
    waiter = pause or threading.Event()
    while not condition():
        assert time.monotonic() < end, "the condition did not come true in time"
        waiter.wait(0.01)


@dataclass
class Reply:
    status: int
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


@dataclass
class Events:
    """A stream as it came: the JSON of every event, its time, and whether [DONE] closed it."""

    status: int
    bodies: list[dict[str, Any]] = field(default_factory=list)
    times_s: list[float] = field(default_factory=list)
    done: bool = False

    @property
    def choices(self) -> list[dict[str, Any]]:
        return [choice for body in self.bodies for choice in body.get("choices", [])]

    @property
    def texts(self) -> list[str]:
        return [choice.get("text", choice.get("delta", {}).get("content")) for choice in self.choices]

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [body["error"] for body in self.bodies if "error" in body]

    @property
    def gaps_s(self) -> list[float]:
        return [later - earlier for earlier, later in zip(self.times_s, self.times_s[1:], strict=False)]


class Client:
    """Talks HTTP to a server on loopback, whichever it is."""

    def __init__(self, port: int) -> None:
        self.port = port

    def connect(self, timeout_s: float = DEADLINE_S) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout_s)

    def get(self, path: str) -> Reply:
        return self.request("GET", path)

    def post(self, path: str, body: object, headers: dict[str, str] | None = None) -> Reply:
        return self.request("POST", path, body if isinstance(body, str) else json.dumps(body), headers or {})

    def request(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> Reply:
        with contextlib.closing(self.connect()) as connection:
            connection.request(method, path, body, JSON | (headers or {}))
            response = connection.getresponse()
            return Reply(response.status, response.read().decode())

    def complete(self, prompt: object, tokens: int, **fields: object) -> Reply:
        return self.post("/v1/completions", {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields})

    @contextlib.contextmanager
    def streaming(self, path: str, body: dict[str, Any], timeout_s: float = DEADLINE_S) -> Iterator[Any]:
        """An open stream: iterate over the response's lines."""
        with contextlib.closing(self.connect(timeout_s)) as connection:
            connection.request("POST", path, json.dumps(body | {"stream": True}), JSON)
            yield connection.getresponse()

    def stream(self, prompt: object, tokens: int, **fields: object) -> Events:
        body = {"prompt": prompt, "max_tokens": tokens, "ignore_eos": True, **fields}
        return self.stream_body("/v1/completions", body)

    def stream_body(self, path: str, body: dict[str, Any]) -> Events:
        with self.streaming(path, body) as response:
            events = Events(response.status)
            for line in response:
                _note(events, line.decode().strip())
        return events

    def metric(self, name: str, **labels: str) -> float:
        """The value of one sample of /metrics."""
        for line in self.get("/metrics").text.splitlines():
            head, _, value = line.rpartition(" ")
            if head.partition("{")[0] == name and all(f'{key}="{text}"' in head for key, text in labels.items()):
                return float(value)
        raise AssertionError(f"no metric {name} with {labels}")


class Server(Client):
    """A started process: its log as it comes, its port, its end."""

    def __init__(self, process: subprocess.Popen[str], port: int) -> None:
        super().__init__(port)
        self.process = process
        self.lines: list[str] = []
        self._news = threading.Condition()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as lines:
            for line in lines:
                with self._news:
                    self.lines.append(line.rstrip("\n"))
                    self._news.notify_all()

    def wait_for_line(self, pattern: str) -> re.Match[str]:
        found: list[re.Match[str]] = []

        def search() -> bool:
            found.extend(match for line in list(self.lines) if (match := re.search(pattern, line)))
            return bool(found)

        with self._news:
            assert self._news.wait_for(search, DEADLINE_S), f"no line like {pattern!r} in {self.lines}"
        return found[0]

    def wait_healthy(self) -> None:
        wait_until(lambda: self.status("/health") == 200)

    def status(self, path: str) -> int | None:
        """HTTP status, None when nothing listens."""
        assert self.process.poll() is None, f"ended with {self.process.returncode}: {self.lines}"
        try:
            return self.get(path).status
        except ConnectionError:
            return None

    def wait_exit(self) -> int:
        return self.process.wait(DEADLINE_S)

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)


def _note(events: Events, line: str) -> None:
    if line == "data: [DONE]":
        events.done = True
    elif line.startswith("data: "):
        events.bodies.append(json.loads(line.removeprefix("data: ")))
        events.times_s.append(time.monotonic())


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def launched(
    *arguments: str,
    port: int = 0,
    model: str = MODEL,
    env: Mapping[str, str] | None = None,
    module: str = "autotune.engines.simulated",
) -> Iterator[Server]:
    """A server process that was started and may not be ready; killed at the end, whatever became of it."""
    port = port or free_port()
    argv = [sys.executable, "-m", module, "serve", model, "--port", str(port), *arguments]
    process = subprocess.Popen(
        argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **(env or {})}
    )
    try:
        yield Server(process, port)
    finally:
        process.kill()
        process.wait(DEADLINE_S)


@contextlib.contextmanager
def serving(*arguments: str, env: Mapping[str, str] | None = None) -> Iterator[Server]:
    """A server that answers /health."""
    with launched(*arguments, env=env) as server:
        server.wait_for_line("Application startup complete")
        wait_until(lambda: server.status("/health") is not None)
        yield server
