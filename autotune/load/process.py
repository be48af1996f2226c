"""The load client as a child of the tuner: started, fed, listened to, and gone when its context ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Self

import autotune
from autotune.errors import EnvironmentFault
from autotune.load.frames import Frame, FrameReader

_READ_BYTES = 2**20
_ROOT = str(Path(autotune.__file__).parents[1])


class ClientProcess:
    """A running `python -m autotune.load.client`. Leaving the context kills it if it still runs, and waits for it.

    `frames` are written from a thread of their own, since making requests takes time and the pipe may be full.
    """

    def __init__(self, frames: Iterable[bytes]) -> None:
        self._frames = frames
        self._reader = FrameReader()
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in __exit__
        self._feeder = ThreadPoolExecutor(1, thread_name_prefix="load-feeder")

    def __enter__(self) -> Self:
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _ROOT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.load.client"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches the tuner alone
            bufsize=0,
        )
        self._feeding: Future[None] = self._feeder.submit(self._feed)
        self._feeding.add_done_callback(self._kill_if_failed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        self._feeder.shutdown()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """Process id of the client."""
        return self._process.pid

    def read(self, timeout_s: float) -> Iterator[Frame]:
        """Yield the frames that came within `timeout_s`, as soon as there are any.

        Raises EnvironmentFault when the client has ended, and whatever making a request raised.
        """
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        if not ready:
            return
        data = os.read(self._process.stdout.fileno(), _READ_BYTES)
        if not data:
            raise self._feeding.exception() or self._ended()
        yield from self._reader.feed(data)

    def stop(self) -> None:
        """Ask the client to end the level now; its records still come."""
        self._process.send_signal(signal.SIGTERM)

    def _feed(self) -> None:
        assert self._process.stdin is not None  # noqa: S101 - for the type checker
        descriptor = self._process.stdin.fileno()
        # A broken pipe means that the client ended first: the reader of its frames knows why.
        with contextlib.suppress(BrokenPipeError):
            for frame in self._frames:
                _write(descriptor, frame)

    def _kill_if_failed(self, feeding: Future[None]) -> None:
        """Requests that can't be made end the level: the reader then sees the end and raises what the feeder raised."""
        if feeding.exception() is not None:
            self._process.kill()

    def _ended(self) -> EnvironmentFault:
        code = self._process.wait()
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "no message")
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        return EnvironmentFault(
            f"the load client ended in the middle of a level ({how}): {said}", "run the trial again"
        )


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
