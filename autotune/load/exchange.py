"""A request on its way and what came back, and how that crosses the pipe from the load client to the tuner."""

from __future__ import annotations

from array import array
from collections.abc import Mapping
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

from autotune.load.response import RawResponse


@dataclass(slots=True, kw_only=True, eq=False)
class Exchange:
    """A request and what came back. Times are `perf_counter`'s; `due_s` is when it should have been sent."""

    index: int
    due_s: float
    request: bytes
    sent_s: float | None = None
    attempts: int = 0
    read_s: array[float] = field(default_factory=lambda: array("d"))
    read_ends: array[int] = field(default_factory=lambda: array("Q"))
    body: bytearray = field(default_factory=bytearray)
    status: int | None = None
    done_s: float | None = None
    error: str | None = None
    retry_after_s: float = 0.0

    @property
    def heard_s(self) -> float:
        """When the last bytes came; when it was sent, before any have."""
        return self.read_s[-1] if self.read_s else self.sent_s or 0.0

    def fail(self, error: str, begun_s: float) -> None:
        """It could not be sent: no connection, tried since `begun_s`."""
        self.error = error
        self.sent_s = self.sent_s or begun_s
        self.done_s = perf_counter()

    def packed(self, t0: float) -> tuple[dict[str, Any], bytes]:
        """Meta data and payload of its RECORD frame, times counted from `t0`; `unpack` reads it."""
        meta = {
            "index": self.index,
            "due_s": self.due_s - t0,
            "sent_s": (self.sent_s or perf_counter()) - t0,  # cut while it was still connecting: now
            "done_s": None if self.done_s is None else self.done_s - t0,
            "status": self.status,
            "error": self.error,
            "reads": len(self.read_s),
            "t0": t0,
        }
        return meta, self.read_s.tobytes() + self.read_ends.tobytes() + self.body


def unpack(meta: Mapping[str, Any], payload: bytes) -> RawResponse:
    """The response in a RECORD frame, its times counted from the level's beginning."""
    reads = meta["reads"]
    stamps, ends = array("d"), array("Q")
    middle = reads * stamps.itemsize
    body = middle + reads * ends.itemsize
    stamps.frombytes(payload[:middle])
    ends.frombytes(payload[middle:body])
    return RawResponse(
        status=meta["status"],
        body=payload[body:],
        read_s=[stamp - meta["t0"] for stamp in stamps],
        read_ends=ends,
        error=meta["error"],
    )
