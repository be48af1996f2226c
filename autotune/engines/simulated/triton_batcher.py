"""Triton's dynamic batcher: holds requests until a preferred batch is together, or the first has waited long enough."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence


class Batcher:
    """`turn` returns when a request is handed over. `delay_s` None: at once, each alone."""

    def __init__(self, *, preferred: Sequence[int], most: int, delay_s: float | None) -> None:
        self._preferred = frozenset(preferred) or frozenset({most})
        self._most = most
        self._delay_s = delay_s
        self._waiting: list[asyncio.Future[None]] = []
        self._timer: asyncio.TimerHandle | None = None
        self.batches = 0
        self.queued_s = 0.0
        self.passed = 0

    @property
    def waiting(self) -> int:
        """Requests that are held now."""
        return len(self._waiting)

    async def turn(self) -> None:
        """Wait for the batch that this request is part of."""
        began_s = time.monotonic()
        if self._delay_s:
            loop = asyncio.get_running_loop()
            mine: asyncio.Future[None] = loop.create_future()
            self._waiting.append(mine)
            if len(self._waiting) in self._preferred or len(self._waiting) >= self._most:
                self._release()
            elif self._timer is None:
                self._timer = loop.call_later(self._delay_s, self._release)
            try:
                await mine
            finally:
                if mine in self._waiting:
                    self._waiting.remove(mine)
        else:
            self.batches += 1
        self.passed += 1
        self.queued_s += time.monotonic() - began_s

    def _release(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        batch, self._waiting = self._waiting, []
        self.batches += bool(batch)
        for each in batch:
            if not each.done():
                each.set_result(None)
