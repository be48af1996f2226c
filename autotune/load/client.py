"""The load client: a process of its own that sends the requests of one level and keeps the time of what comes back.

    python -m autotune.load.client      frames on stdin: SETUP, REQUEST …, END; on stdout: PROGRESS, RECORD …, FINISHED

It is apart from the tuner so that neither the live display nor the parsing of responses disturbs its clock: requests
come as bytes, ready to be sent, and responses go back as bytes, to be parsed by the tuner. SIGTERM ends the level at
once and loses nothing that was recorded. The process ends when the tuner's pipes close.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import signal
import sys
from typing import Any

import uvloop

from autotune.load.frames import Frame, Kind
from autotune.load.level import Level, Ready, Setup
from autotune.load.pipes import TunerPipes


async def serve() -> None:
    """Run the level that the tuner asks for, and hand over all of its records."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    level: Level | None = None

    def on_frame(frame: Frame) -> None:
        nonlocal level
        if frame.kind is Kind.SETUP:
            level = Level(Setup(**frame.meta), pipes, on_finished)
            loop.add_signal_handler(signal.SIGTERM, level.stop)
        elif level is not None and frame.kind is Kind.REQUEST:
            level.feed(Ready(frame.meta["index"], frame.meta["at_s"], frame.payload))
        elif level is not None and frame.kind is Kind.END:
            level.end_of_plan()

    def on_finished() -> None:
        if not ended.done():
            ended.set_result(None)

    def on_bug(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """A callback raised: end with its traceback rather than hang."""
        if not ended.done():
            ended.set_exception(context.get("exception") or RuntimeError(context["message"]))

    loop.set_exception_handler(on_bug)
    pipes = TunerPipes(on_frame)
    await pipes.connect()
    await asyncio.wait((pipes.lost, ended), return_when=asyncio.FIRST_COMPLETED)
    if ended.done():
        ended.result()
        await pipes.flush()


def main() -> int:
    """Run until the level ended or the tuner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the tuner's to handle
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):  # some systems say more than they allow
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    uvloop.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
