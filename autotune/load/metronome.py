"""Wakes an event loop at an exact time.

An event loop's own timers count whole milliseconds (libuv, epoll), which would put half a millisecond on every latency
that counts from a scheduled time; a loop that spins the last millisecond burns the core that the engine may need. A
thread that sleeps costs neither.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Callable
from time import perf_counter

# Linux lets a sleep overrun by its timer slack, 50 us by default.
_SLACK_S = 60e-6


class Metronome:
    """Calls `callback` in `loop` at the time that `wake_at` was last told, whether sooner or later than before."""

    def __init__(self, loop: asyncio.AbstractEventLoop, callback: Callable[[], None]) -> None:
        self._loop = loop
        self._callback = callback
        self._target_s: float | None = None
        self._closed = False
        self._orders: queue.SimpleQueue[float | None] = queue.SimpleQueue()  # None: no more
        threading.Thread(target=self._run, name="metronome", daemon=True).start()

    def wake_at(self, target_s: float) -> None:
        """Ask for a call at `target_s` (`perf_counter`); asking again for the same time changes nothing."""
        if target_s != self._target_s:
            self._target_s = target_s
            self._orders.put(target_s)

    def close(self) -> None:
        """No further call."""
        self._closed = True
        self._orders.put(None)

    def _run(self) -> None:
        target_s = self._orders.get()
        while target_s is not None:
            try:
                target_s = self._orders.get(timeout=max(0.0, target_s - _SLACK_S - perf_counter()))
            except queue.Empty:
                if self._closed:  # and its loop perhaps too
                    return
                self._loop.call_soon_threadsafe(self._beat)
                target_s = self._orders.get()

    def _beat(self) -> None:
        self._target_s = None
        if not self._closed:
            self._callback()
