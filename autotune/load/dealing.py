"""One plan dealt to several load clients: each session whole, to the same client at every run."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from autotune.records.trial import LevelPlan, RequestPlan


@dataclass(frozen=True, slots=True)
class Dealt:
    """A request for a client; `more`: the next one of the plan is the turn after it."""

    request: RequestPlan
    more: bool


class Deal:
    """Deals the sessions of `plan` in turn to `hands` clients; in a closed loop in proportion to their slots.

    Requests are made once, by whichever client's thread asks first: what is dealt to the others waits for them.
    """

    def __init__(self, plan: LevelPlan, hands: int) -> None:
        self._requests = _with_next(plan.requests)
        self._slots = plan.concurrency or hands
        self._sessions = 0
        self._hands: list[deque[Dealt]] = [deque() for _ in range(hands)]
        self._lock = threading.Lock()

    def hand(self, which: int) -> Iterator[Dealt]:
        """The requests of client `which`, in the plan's order. Each hand is drawn by one thread."""
        mine = self._hands[which]
        while True:
            with self._lock:
                while not mine:
                    if not self._draw():
                        return
            yield mine.popleft()

    def _draw(self) -> bool:
        request, following = next(self._requests, (None, None))
        if request is None:
            return False
        if request.after is None:
            self._sessions += 1
        more = following is not None and following.after is not None
        if more and following is not None and following.after != request.index:
            raise ValueError(f"request {following.index} of the plan doesn't follow the turn before it directly")
        owner = (self._sessions - 1) % self._slots % len(self._hands)
        self._hands[owner].append(Dealt(request, more))
        return True


def slots(concurrency: int | None, hands: int) -> list[int | None]:
    """How many of a closed loop's slots each client has; None for each in an open loop."""
    if concurrency is None:
        return [None] * hands
    return [len(range(which, concurrency, hands)) for which in range(hands)]


def _with_next(requests: Sequence[RequestPlan]) -> Iterator[tuple[RequestPlan, RequestPlan | None]]:
    before: RequestPlan | None = None
    for request in requests:
        if before is not None:
            yield before, request
        before = request
    if before is not None:
        yield before, None
