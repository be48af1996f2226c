"""The load clients as children of the tuner: started, fed, listened to, and gone when their context ends."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

import autotune
from autotune.errors import EnvironmentFault
from autotune.load.frames import START, Frame, FrameReader, Kind

_READ_BYTES = 2**20
# Clients report ten times a second; a silence of this length means that one, or the machine, hangs.
_SILENCE_MAX_S = 30.0
# From "all are ready" to a level's time 0: for the word to reach every client, and the first arrival's timer to be set.
_LEAD_S = 0.05
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
        start, self._start = os.pipe()
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), _ROOT)))}
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "autotune.load.client", str(start)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._stderr,
            pass_fds=(start,),
            env=environment,
            start_new_session=True,  # Ctrl-C in the terminal reaches the tuner alone
            bufsize=0,
        )
        os.close(start)
        self._feeding: Future[None] = self._feeder.submit(self._feed)
        self._feeding.add_done_callback(self._kill_if_failed)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.wait()
        os.close(self._start)
        self._feeder.shutdown()
        for stream in (self._process.stdin, self._process.stdout, self._stderr):
            if stream is not None:
                stream.close()

    @property
    def pid(self) -> int:
        """Process id of the client."""
        return self._process.pid

    def fileno(self) -> int:
        """What becomes readable when frames came, or the client ended."""
        assert self._process.stdout is not None  # noqa: S101 - for the type checker
        return self._process.stdout.fileno()

    def read(self) -> Iterator[Frame]:
        """Yield the frames that came; waits for some.

        Raises EnvironmentFault when the client has ended, and whatever making a request raised.
        """
        data = os.read(self.fileno(), _READ_BYTES)
        if not data:
            raise self._feeding.exception() or self._ended()
        yield from self._reader.feed(data)

    def start(self, t0: float) -> None:
        """Tell it the level's time 0, in `perf_counter`'s seconds."""
        with contextlib.suppress(BrokenPipeError):  # it ended: `read` tells why
            os.write(self._start, START.pack(t0))

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


class Clients:
    """The load clients of one level, each fed its own frames, begun together once all are ready."""

    def __init__(self, shares: Sequence[Iterable[bytes]]) -> None:
        self._all = [ClientProcess(share) for share in shares]
        self._running = dict(enumerate(self._all))
        self._ready = 0
        self._heard_at: dict[int, float] = {}

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for client in self._all:
                stack.enter_context(client)
            self._stack = stack.pop_all()
        self._heard_at = dict.fromkeys(self._running, time.monotonic())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.close()

    def read(self, timeout_s: float) -> Iterator[tuple[int, Frame]]:
        """Yield the frames that came within `timeout_s`, each with the number of its client, as soon as there are any.

        Raises as `ClientProcess.read`, and EnvironmentFault when a client is silent for too long.
        """
        readable, _, _ = select.select(list(self._running.values()), [], [], timeout_s)
        for which, client in list(self._running.items()):
            if client in readable:
                self._heard_at[which] = time.monotonic()
                for frame in client.read():
                    self._follow(which, frame)
                    yield which, frame
            elif time.monotonic() - self._heard_at[which] > _SILENCE_MAX_S:
                raise EnvironmentFault(
                    f"the load client said nothing for {_SILENCE_MAX_S:g} s", "is this machine overloaded or suspended?"
                )

    def stop(self) -> None:
        """Ask all of them to end the level now; their records still come."""
        for client in self._running.values():
            client.stop()

    def _follow(self, which: int, frame: Frame) -> None:
        if frame.kind is Kind.FINISHED:
            del self._running[which]
        elif frame.kind is Kind.READY:
            self._ready += 1
            if self._ready == len(self._all):
                t0 = time.perf_counter() + _LEAD_S
                for client in self._all:
                    client.start(t0)


def _write(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
