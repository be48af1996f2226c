"""One level of load inside the load client: when which request goes out on which connection, and when it all ends.

Open loop: each request at its own time, on as many connections as that takes. Closed loop: `concurrency` slots, each
sending the next request as soon as its last one ended. Both send from a queue of requests ready as bytes.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Protocol

from autotune.load.exchange import Exchange
from autotune.load.frames import Kind
from autotune.load.metronome import Metronome
from autotune.load.pool import Pool
from autotune.load.response import CUT

PROGRESS_EVERY_S = 0.1
# How far requests are read ahead of being sent: enough for a burst, bounded in memory for long prompts.
_AHEAD_MIN = 64
_AHEAD_BYTES_MAX = 32 * 2**20
# The first arrival of an open loop needs its connection and timer set up by then.
_OPEN_LEAD_S = 0.05
# Sending this much early is nothing beside a network's own jitter, and spares a second wake-up.
_EARLY_S = 80e-6
# A closed loop on a server that refuses would spin: a slot pauses after an error, longer after each further one.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The level, as the SETUP frame says. `concurrency` None: open loop, each request has its `at_s`."""

    host: str
    port: int
    tls: bool
    concurrency: int | None
    end_s: float
    drain_s: float


@dataclass(frozen=True, slots=True)
class Ready:
    """A request ready to be sent."""

    index: int
    at_s: float | None
    data: bytes


class Pipes(Protocol):
    """What a level needs of the way to the tuner."""

    def send(self, kind: Kind, meta: dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame; never waits."""

    def pause(self) -> None:
        """Feed no more requests for now."""

    def resume(self) -> None:
        """Feed requests again."""


class Level:
    """A level from its first request to its last byte; `on_finished` is called once everything was handed over."""

    def __init__(self, setup: Setup, pipes: Pipes, on_finished: Callable[[], None]) -> None:
        self._setup = setup
        self._pipes = pipes
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(setup.host, setup.port, tls=setup.tls, on_ended=self._settle)
        self._metronome = Metronome(self._loop, self._dispatch)
        self._queue: deque[Ready] = deque()
        self._queue_bytes = 0
        self._ahead = max(_AHEAD_MIN, 2 * (setup.concurrency or 0))
        self._fed = False  # the plan has no more than what was fed
        self._preparing = self._begun = False
        self._closing = False  # no further request
        self._t0 = 0.0
        self._cpu0_s = 0.0
        self._free: deque[float] = deque()  # closed loop: since when each free slot has waited for a request
        self._pause_s = _PAUSE_MIN_S
        self._active: set[Exchange] = set()
        self._ended: deque[Exchange] = deque()  # to be handed over
        self._finished = False

    # --- the plan -----------------------------------------------------------------------------------------------------

    def feed(self, ready: Ready) -> None:
        """Take the next request of the plan."""
        self._queue.append(ready)
        self._queue_bytes += len(ready.data)
        if self._full():
            self._pipes.pause()
        self._advance()

    def end_of_plan(self) -> None:
        """No more requests will be fed."""
        self._fed = True
        self._advance()

    def _full(self) -> bool:
        return len(self._queue) >= self._ahead or self._queue_bytes >= _AHEAD_BYTES_MAX

    def _pop(self) -> Ready:
        ready = self._queue.popleft()
        self._queue_bytes -= len(ready.data)
        if len(self._queue) <= self._ahead // 2 and self._queue_bytes <= _AHEAD_BYTES_MAX // 2:
            self._pipes.resume()
        return ready

    # --- beginning and end --------------------------------------------------------------------------------------------

    def stop(self) -> None:
        """End now: cut what is in flight, keep every record."""
        self._finish(stopped=True)

    def _advance(self) -> None:
        if self._begun:
            self._dispatch()
        elif not self._preparing and (self._fed or self._full()):
            self._preparing = True
            self._pool.prepare(min(self._setup.concurrency or 1, len(self._queue)), self._begin)

    def _begin(self) -> None:
        self._begun = True
        gc.collect()
        gc.freeze()
        gc.disable()
        lead_s = _OPEN_LEAD_S if self._setup.concurrency is None else 0.0
        self._t0 = perf_counter() + lead_s
        self._cpu0_s = _cpu_s()
        self._free.extend([self._t0] * (self._setup.concurrency or 0))
        self._loop.call_later(lead_s + self._setup.end_s, self._close)
        self._loop.call_later(lead_s + self._setup.end_s + self._setup.drain_s, self._finish)
        self._dispatch()
        self._report()

    def _close(self) -> None:
        self._dispatch()  # an arrival of the last moment still belongs
        self._closing = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._active and (self._closing or (self._fed and not self._queue)):
            self._finish()

    def _finish(self, *, stopped: bool = False) -> None:
        if self._finished:
            return
        self._finished = self._closing = True
        self._metronome.close()
        self._pool.close()
        while self._ended:
            self._record(self._ended.popleft())
        for exchange in self._active:
            exchange.error = CUT
            self._record(exchange)
        end_s = max(0.0, perf_counter() - self._t0) if self._begun else 0.0
        cpu_ratio = (_cpu_s() - self._cpu0_s) / end_s if end_s else None
        self._pipes.send(Kind.FINISHED, {"end_s": end_s, "cpu_ratio": cpu_ratio, "stopped": stopped})
        self._on_finished()

    # --- sending ------------------------------------------------------------------------------------------------------

    def _dispatch(self) -> None:
        """Send what can be sent now."""
        if self._closing:
            return
        if self._setup.concurrency is None:
            self._dispatch_due()
        else:
            self._dispatch_free()
        self._finish_if_done()

    def _dispatch_due(self) -> None:
        while self._queue:
            due_s = self._t0 + (self._queue[0].at_s or 0.0)
            if due_s - perf_counter() > _EARLY_S:
                self._metronome.wake_at(due_s)
                self._pool.hold_spare()
                return
            self._send(self._pop(), due_s)

    def _dispatch_free(self) -> None:
        end_s = self._t0 + self._setup.end_s
        while self._free and self._queue and perf_counter() < end_s:
            self._send(self._pop(), self._free.popleft())

    def _send(self, ready: Ready, due_s: float) -> None:
        exchange = Exchange(index=ready.index, due_s=due_s, request=ready.data)
        self._active.add(exchange)
        self._pool.send(exchange)

    # --- what came back -----------------------------------------------------------------------------------------------

    def _settle(self, exchange: Exchange) -> None:
        """An exchange ended by itself: free its slot, then hand over its record when there is time."""
        self._active.discard(exchange)
        self._ended.append(exchange)
        if len(self._ended) == 1:
            self._loop.call_soon(self._hand_over)
        if self._setup.concurrency is None or self._closing:
            self._finish_if_done()
        elif exchange.error is None and exchange.status == 200:
            self._pause_s = _PAUSE_MIN_S
            self._release()
        else:
            self._loop.call_later(self._pause_s, self._release)
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
            self._finish_if_done()

    def _release(self) -> None:
        self._free.append(perf_counter())
        self._dispatch()

    def _hand_over(self) -> None:
        """Pass one record to the tuner; the network has its turn before the next."""
        if self._ended:
            self._record(self._ended.popleft())
        if self._ended:
            self._loop.call_soon(self._hand_over)

    def _record(self, exchange: Exchange) -> None:
        self._pipes.send(Kind.RECORD, *exchange.packed(self._t0))

    def _report(self) -> None:
        if self._finished:
            return
        now = perf_counter()
        waiting = [exchange.due_s for exchange in self._active if not exchange.read_s]
        meta = {
            "elapsed_s": max(0.0, now - self._t0),
            "in_flight": len(self._active),
            "waiting_first_token": len(waiting),
            "oldest_wait_s": max(0.0, now - min(waiting)) if waiting else 0.0,
            "chunks_in_flight": sum(len(exchange.read_s) for exchange in self._active),
        }
        self._pipes.send(Kind.PROGRESS, meta)
        self._loop.call_later(PROGRESS_EVERY_S, self._report)


def _cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime
