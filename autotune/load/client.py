"""The load client: a process of its own that sends the requests of one level and keeps the time of what comes back.

    python -m autotune.load.client START
        frames on stdin: SETUP, REQUEST …, END; on stdout: READY, PROGRESS, RECORD …, FINISHED

It is apart from the tuner so that neither the live display nor the parsing of responses disturbs its clock: requests
come as bytes, ready to be sent, and responses go back as bytes, to be parsed by the tuner. SIGTERM ends the level at
once and loses nothing that was recorded. The process ends when the tuner's pipes close.

After READY it waits for the level's time 0 on the descriptor START: a double, in seconds of `perf_counter`, which is
one clock for all processes of a machine. So several clients begin at once, and no backlog of requests is in the way.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import sys
from typing import Any

import uvloop

from autotune.load.backlog import Ready
from autotune.load.frames import START, Frame, Kind
from autotune.load.level import Level, Setup
from autotune.load.pipes import TunerPipes


class Client:
    """Turns what the tuner says into a level; `ended` is done when all of the level's records were handed over."""

    def __init__(self, start: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.set_exception_handler(self._on_bug)
        self._start = start
        self._level: Level | None = None
        self._pipes = TunerPipes(self._on_frame)
        self._ended: asyncio.Future[None] = self._loop.create_future()

    async def serve(self) -> None:
        """Run the level that the tuner asks for."""
        await self._pipes.connect()
        self._loop.add_reader(self._start, self._on_start)
        await asyncio.wait((self._pipes.lost, self._ended), return_when=asyncio.FIRST_COMPLETED)
        if self._ended.done():
            self._ended.result()
            await self._pipes.flush()

    def _on_frame(self, frame: Frame) -> None:
        if frame.kind is Kind.SETUP:
            self._level = Level(Setup(**frame.meta), self._pipes, self._on_finished)
            self._loop.add_signal_handler(signal.SIGTERM, self._level.stop)
        elif self._level is not None and frame.kind is Kind.REQUEST:
            self._level.feed(Ready(**frame.meta, data=frame.payload))
        elif self._level is not None and frame.kind is Kind.END:
            self._level.end_of_plan()

    def _on_start(self) -> None:
        self._loop.remove_reader(self._start)
        moment = os.read(self._start, START.size)
        if self._level is not None and moment:  # nothing: the tuner is gone
            self._level.begin(*START.unpack(moment))

    def _on_finished(self) -> None:
        if not self._ended.done():
            self._ended.set_result(None)

    def _on_bug(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: end with its traceback rather than hang."""
        if not self._ended.done():
            self._ended.set_exception(context.get("exception") or RuntimeError(context["message"]))


async def serve(start: int) -> None:
    """Run one level; `start` is the descriptor that tells when it begins."""
    await Client(start).serve()


def main() -> int:
    """Run until the level ended or the tuner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems say more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve(int(sys.argv[1])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
