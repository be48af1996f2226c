"""The load client's end of the pipes to the tuner: frames in on stdin, frames out on stdout."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Mapping
from typing import Any

from autotune.load.frames import Frame, FrameReader, Kind, pack


class TunerPipes(asyncio.Protocol):
    """`on_frame` is called for each frame; `lost` is done when either pipe closed, after which nothing arrives."""

    def __init__(self, on_frame: Callable[[Frame], None]) -> None:
        self._on_frame = on_frame
        self._reader = FrameReader()
        self._in: asyncio.ReadTransport | None = None
        self._out: asyncio.WriteTransport | None = None
        self._paused = False
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def connect(self) -> None:
        """Attach to stdin and stdout."""
        loop = asyncio.get_running_loop()
        self._out, _ = await loop.connect_write_pipe(lambda: _Closing(self._lose), sys.stdout.buffer)
        self._in, _ = await loop.connect_read_pipe(lambda: self, sys.stdin.buffer)

    def send(self, kind: Kind, meta: Mapping[str, Any], payload: bytes = b"") -> None:
        """Queue a frame; never waits."""
        if self._out is not None:
            self._out.write(pack(kind, meta, payload))

    async def flush(self) -> None:
        """Close the way out once all that was sent is in the pipe."""
        if self._out is not None:
            self._out.close()
            await self.lost

    def pause(self) -> None:
        """Stop reading frames: the pipe fills and the tuner waits."""
        if self._in is not None and not self._paused:
            self._paused = True
            self._in.pause_reading()

    def resume(self) -> None:
        """Read frames again."""
        if self._in is not None and self._paused:
            self._paused = False
            self._in.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass on the frames that `data` completes."""
        for frame in self._reader.feed(data):
            self._on_frame(frame)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """stdin closed: the tuner is gone."""
        self._lose()

    def _lose(self) -> None:
        if not self.lost.done():
            self.lost.set_result(None)


class _Closing(asyncio.BaseProtocol):
    def __init__(self, on_lost: Callable[[], None]) -> None:
        self._on_lost = on_lost

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._on_lost()
