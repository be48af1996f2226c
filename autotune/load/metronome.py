"""Wakes an event loop at an exact time.

An event loop's own timers count whole milliseconds (libuv, epoll), which would put half a millisecond on every latency
that counts from a scheduled time; a loop that spins the last millisecond burns the core that the engine may need. A
thread that sleeps costs neither.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable

# Linux lets a sleep overrun by its timer slack, 50 us by default.
_SLACK_S = 60e-6


class Metronome:
    """Calls `callback` in `loop` at the time that `wake_at` was last told."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._target_s: float | None = None
        self._orders: queue.SimpleQueue[float] = queue.SimpleQueue()
        self._closed = threading.Event()
        threading.Thread(target=self._run, name="metronome", daemon=True).start()

    def wake_at(self, target_s: float) -> None:
        """Ask for a call at `target_s` (`perf_counter`); asking again for the same time changes nothing."""
        if target_s != self._target_s:
            self._target_s = target_s
            self._orders.put(target_s)

    def close(self) -> None:
        """No further call."""
        self._closed.set()

    def _run(self) -> None:
        while True:
            rest_s = self._orders.get() - _SLACK_S - time.perf_counter()
            if rest_s > 0:
                time.sleep(rest_s)
            if self._closed.is_set():
                return
            self._loop.call_soon_threadsafe(self._beat)

    def _beat(self) -> None:
        self._target_s = None
        if not self._closed.is_set():
            self._callback()
