"""The pipe between the tuner and its load client: frames of one kind letter, a JSON object and raw bytes."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

START = struct.Struct("d")
"""A level's time 0 as the client is told it, in seconds of `perf_counter`."""

_HEAD = struct.Struct("<cII")


class Kind(Enum):
    """What a frame says. To the client: SETUP, REQUEST …, END; to the tuner: READY, PROGRESS and RECORD …, FINISHED."""

    SETUP = b"S"
    REQUEST = b"R"
    END = b"E"
    READY = b"Y"
    PROGRESS = b"P"
    RECORD = b"D"
    FINISHED = b"F"


@dataclass(frozen=True, slots=True)
class Frame:
    kind: Kind
    meta: dict[str, Any]
    payload: bytes


def pack(kind: Kind, meta: Mapping[str, Any], payload: bytes = b"") -> bytes:
    """One frame as bytes."""
    head = json.dumps(meta, separators=(",", ":")).encode()
    return _HEAD.pack(kind.value, len(head), len(payload)) + head + payload


class FrameReader:
    """Cuts a byte stream into frames, whatever pieces it arrives in."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Yield the frames that `data` completes."""
        self._buffer += data
        while (frame := self._next()) is not None:
            yield frame

    def _next(self) -> Frame | None:
        buffer = self._buffer
        if len(buffer) < _HEAD.size:
            return None
        kind, meta_bytes, payload_bytes = _HEAD.unpack_from(buffer)
        middle = _HEAD.size + meta_bytes
        end = middle + payload_bytes
        if len(buffer) < end:
            return None
        frame = Frame(Kind(kind), json.loads(buffer[_HEAD.size : middle]), bytes(buffer[middle:end]))
        del buffer[:end]
        return frame
