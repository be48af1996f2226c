"""The part of the plan that the load client holds: sessions of requests ready as bytes, and how far to read ahead."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

# How far requests are read ahead of being sent: enough for a burst, bounded in memory for long prompts.
_AHEAD_MIN = 64
_AHEAD_BYTES_MAX = 32 * 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A request ready to be sent. `more`: the next one of the plan is the turn after it."""

    index: int
    data: bytes
    at_s: float | None = None
    think_s: float = 0.0
    more: bool = False


@dataclass(slots=True, eq=False)
class Session:
    """Requests of which each is sent after the one before it ended; most sessions have one.

    `rested_s` is when its last turn ended, while the next has not been read from the tuner yet.
    """

    turns: deque[Ready] = field(default_factory=deque)
    whole: bool = False
    rested_s: float | None = None

    @property
    def bytes(self) -> int:
        """Bytes of the requests that it still has to send."""
        return sum(len(turn.data) for turn in self.turns)


class Backlog:
    """Sessions that have not begun, in the plan's order; `last` is the one that was read last, begun or not.

    Turns of sessions that run are not counted as read ahead: the sessions behind them could not be read otherwise.
    """

    def __init__(self, slots: int) -> None:
        self.last = Session(whole=True)
        self._waiting: deque[Session] = deque()
        self._bytes = 0
        self._ahead = max(_AHEAD_MIN, 2 * slots)

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_s(self) -> float | None:
        """When the next session arrives; None in a closed loop, and when none waits."""
        return self._waiting[0].turns[0].at_s if self._waiting else None

    @property
    def full(self) -> bool:
        """Nothing more should be read for now."""
        return len(self._waiting) >= self._ahead or (self._bytes >= _AHEAD_BYTES_MAX and bool(self._waiting))

    @property
    def low(self) -> bool:
        """It is time to read on."""
        return len(self._waiting) <= self._ahead // 2 and self._bytes <= _AHEAD_BYTES_MAX // 2

    def add(self, ready: Ready) -> Session:
        """Put a request behind the last one of its session; returns the session."""
        if self.last.whole:
            self.last = Session()
            self._waiting.append(self.last)
        self.last.turns.append(ready)
        self.last.whole = not ready.more
        if self._waiting and self._waiting[-1] is self.last:
            self._bytes += len(ready.data)
        return self.last

    def pop(self) -> Session:
        """Take the next session, to begin it."""
        session = self._waiting.popleft()
        self._bytes -= session.bytes
        return session
