"""How a level stands while it runs: for the live display and for whoever decides to stop it early."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class LevelPhase(StrEnum):
    WARMUP = "warmup"
    WINDOW = "window"
    DRAIN = "drain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A level so far. `sent` = `done` + `errors` + `in_flight`, warm-up included.

    `oldest_wait_s` is how long the oldest request without a first token has waited, from when latency counts (0 when
    none waits). `tokens` are the server's counts of finished requests, and one for each read of those in flight.
    """

    elapsed_s: float
    phase: LevelPhase
    sent: int
    done: int
    errors: int
    in_flight: int
    waiting_first_token: int
    oldest_wait_s: float
    tokens: int
    completions_5s: int
