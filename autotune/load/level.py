"""One level of load inside the load client: when which request goes out on which connection, and when it all ends.

Open loop: each session begins at its own time, on as many connections as that takes. Closed loop: `concurrency` slots,
each beginning the next session as soon as its last one is over. A session is one request, or several turns, each sent
`think_s` after the one before it ended; its slot waits with it.
"""

from __future__ import annotations

import asyncio
import gc
import resource
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count
from time import perf_counter
from typing import Any, Protocol

from autotune.load.backlog import Backlog, Ready, Session
from autotune.load.exchange import Exchange
from autotune.load.frames import Kind
from autotune.load.metronome import Metronome
from autotune.load.pool import Pool
from autotune.load.response import CUT

PROGRESS_EVERY_S = 0.1
# Sending this much early is nothing beside a network's own jitter, and spares a second wake-up.
_EARLY_S = 80e-6
# A closed loop on a server that refuses would spin: a slot pauses after an error, longer after each further one.
_PAUSE_MIN_S, _PAUSE_MAX_S = 0.05, 1.0
_REST_MAX_S = 60.0  # of Retry-After: longer and the level has no more to tell


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The level, as the SETUP frame says. `concurrency` None: open loop, each session has its `at_s`."""

    host: str
    port: int
    tls: bool
    concurrency: int | None
    end_s: float
    drain_s: float


class Pipes(Protocol):
    """What a level needs of the way to the tuner."""

    def send(self, kind: Kind, meta: dict[str, Any], payload: bytes = b"") -> None:
        """Queue a frame; never waits."""

    def pause(self) -> None:
        """Feed no more requests for now."""

    def resume(self) -> None:
        """Feed requests again."""


class Level:
    """A level from its first request to its last byte; `on_finished` is called once everything was handed over.

    `feed` and `end_of_plan` bring the plan. Once enough of it is there and the connections are open, READY is sent; the
    level begins with `begin`.
    """

    def __init__(self, setup: Setup, pipes: Pipes, on_finished: Callable[[], None]) -> None:
        self._setup = setup
        self._pipes = pipes
        self._on_finished = on_finished
        self._loop = asyncio.get_running_loop()
        self._pool = Pool(setup.host, setup.port, tls=setup.tls, on_ended=self._settle)
        self._metronome = Metronome(self._loop, self._dispatch)
        self._backlog = Backlog(setup.concurrency or 0)
        self._fed = False  # the plan has no more than what was fed
        self._preparing = self._begun = False
        self._closing = False  # no further request
        self._t0 = self._end = 0.0  # when the level began, and its last request may
        self._cpu0_s = 0.0
        self._free: deque[float] = deque()  # closed loop: since when each free slot has waited for a session
        self._pause_s = _PAUSE_MIN_S
        self._turns: list[tuple[float, int, Session]] = []  # a heap: when whose next turn is due
        self._tie = count()
        self._running = 0  # sessions begun and not over
        self._active: dict[Exchange, Session] = {}
        self._ended: deque[Exchange] = deque()  # to be handed over
        self._finished = False

    # --- the plan -----------------------------------------------------------------------------------------------------

    def feed(self, ready: Ready) -> None:
        """Take the next request of the plan."""
        session = self._backlog.add(ready)
        if session.rested_s is not None:
            self._schedule(session, session.rested_s)
        if self._backlog.full:
            self._pipes.pause()
        self._advance()

    def end_of_plan(self) -> None:
        """No more requests will be fed."""
        self._fed = True
        self._advance()

    def _take(self) -> Session:
        session = self._backlog.pop()
        if self._backlog.low:
            self._pipes.resume()
        return session

    # --- beginning and end --------------------------------------------------------------------------------------------

    def _advance(self) -> None:
        if self._begun:
            self._dispatch()
        elif not self._preparing and (self._fed or self._backlog.full):
            self._preparing = True
            self._pool.prepare(min(self._setup.concurrency or 1, len(self._backlog)), self._ready)

    def _ready(self) -> None:
        gc.collect()
        gc.freeze()
        gc.disable()
        self._pipes.send(Kind.READY, {})

    def begin(self, t0: float) -> None:
        """The level's time 0 is `t0` of `perf_counter`, a moment from now."""
        self._begun = True
        self._t0, self._end = t0, t0 + self._setup.end_s
        self._cpu0_s = _cpu_s()
        self._free.extend([t0] * (self._setup.concurrency or 0))
        rest_s = self._end - perf_counter()
        self._loop.call_later(rest_s, self._close)
        self._loop.call_later(rest_s + self._setup.drain_s, self._finish)
        self._dispatch()
        self._report()

    def stop(self) -> None:
        """End now: cut what is in flight, keep every record."""
        self._finish(stopped=True)

    def _close(self) -> None:
        self._dispatch()  # an arrival of the last moment still belongs
        self._closing = True
        self._finish_if_done()

    def _finish_if_done(self) -> None:
        if not self._active and (self._closing or (self._fed and not self._backlog and not self._running)):
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
        """Send what can be sent now, and wake up when the next is due."""
        if self._closing:
            return
        if self._now(self._t0):
            self._send_turns()
            self._begin_sessions()
        self._finish_if_done()
        if not self._closing and (next_s := self._next_s()) is not None:
            self._metronome.wake_at(next_s)
            if self._setup.concurrency is None:
                self._pool.hold_spare()

    def _now(self, due_s: float) -> bool:
        return due_s - perf_counter() <= _EARLY_S

    def _next_s(self) -> float | None:
        if not self._now(self._t0):
            return self._t0
        at_s = self._backlog.next_s
        due = [] if at_s is None else [self._t0 + at_s]
        return min(due + [due_s for due_s, *_ in self._turns[:1]], default=None)

    def _send_turns(self) -> None:
        while self._turns and self._turns[0][0] < self._end and self._now(self._turns[0][0]):
            due_s, _, session = heappop(self._turns)
            self._send(session, due_s)

    def _begin_sessions(self) -> None:
        if self._setup.concurrency is None:
            while (at_s := self._backlog.next_s) is not None and self._now(self._t0 + at_s):
                self._begin(self._take(), self._t0 + at_s)
        else:
            while self._free and self._backlog and perf_counter() < self._end:
                self._begin(self._take(), self._free.popleft())

    def _begin(self, session: Session, due_s: float) -> None:
        self._running += 1
        self._send(session, due_s)

    def _send(self, session: Session, due_s: float) -> None:
        ready = session.turns.popleft()
        exchange = Exchange(index=ready.index, due_s=due_s, request=ready.data)
        self._active[exchange] = session
        self._pool.send(exchange)

    # --- what came back -----------------------------------------------------------------------------------------------

    def _settle(self, exchange: Exchange) -> None:
        """An exchange ended by itself: on with its session, then hand over its record when there is time."""
        session = self._active.pop(exchange)
        self._ended.append(exchange)
        if len(self._ended) == 1:
            self._loop.call_soon(self._hand_over)
        if session.turns:
            self._schedule(session, exchange.done_s or perf_counter())
            self._dispatch()
        elif not session.whole:
            session.rested_s = exchange.done_s
        else:
            failed = exchange.error is not None or exchange.status != 200
            self._over(failed=failed, rest_s=exchange.retry_after_s if failed else 0.0)
        self._finish_if_done()

    def _schedule(self, session: Session, rested_s: float) -> None:
        """Its next turn comes when the user has thought, who keeps the slot even if that is after the level's end."""
        session.rested_s = None
        heappush(self._turns, (rested_s + session.turns[0].think_s, next(self._tie), session))

    def _over(self, *, failed: bool, rest_s: float) -> None:
        """A session is over: its slot is free, after a pause if the server fails, and not before it asked to wait."""
        self._running -= 1
        if self._setup.concurrency is None or self._closing:
            return
        if failed:
            self._loop.call_later(max(self._pause_s, min(rest_s, _REST_MAX_S)), self._release)
            self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)
        else:
            self._pause_s = _PAUSE_MIN_S
            self._release()

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
