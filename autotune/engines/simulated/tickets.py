"""What passes between the engine loop and a request that waits for its tokens."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.engines.simulated import logs


class EngineDeadError(Exception):
    """The engine core is gone; whoever waits for tokens gets this."""

    def __init__(self) -> None:
        super().__init__(logs.DEAD)


@dataclass(frozen=True, slots=True)
class Delta:
    """How many tokens a prompt got (which ones follows from the prompt), and whether they were its last."""

    tokens: int
    done: bool


Inbox = asyncio.Queue[tuple[int, Delta] | EngineDeadError]


@dataclass(slots=True, kw_only=True)
class Ticket:
    """One prompt in the engine; its deltas go to `inbox` under its `index`, which the prompts of a request share.

    `interval` tokens are delivered together, the first one alone unless `hold_first`.
    """

    prompt: Sequence[int]
    output_tokens: int
    finish_reason: str
    interval: int
    hold_first: bool
    index: int
    inbox: Inbox
    id: int = -1
    produced: int = 0
    held: int = 0
    cached_tokens: int = 0
    arrived_s: float = field(default_factory=time.monotonic)
    admitted_s: float | None = None
    first_s: float = 0.0
    last_s: float = 0.0

    def hand_over(self) -> None:
        """Deliver what is held back, when enough is or the request ends."""
        done = self.produced == self.output_tokens
        if done or self.held >= self.interval or (self.produced == 1 and not self.hold_first):
            self.inbox.put_nowait((self.index, Delta(self.held, done)))
            self.held = 0
