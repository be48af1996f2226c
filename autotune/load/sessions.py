"""Conversations as requests in one sequence: all turns of one, then those of the next."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Protocol

from autotune.load.seeds import Stream, generator
from autotune.records.trial import RequestPlan


class Conversations(Protocol):
    """Where conversations come from: made up, or a dataset."""

    @property
    def mean_turns(self) -> float:
        """Turns of a conversation on average."""
        ...

    def turns(self, session: int) -> int:
        """How many turns conversation number `session` has, at least 1."""
        ...

    def draw(self, session: int, first: int, turn: int) -> RequestPlan:
        """Turn number `turn` of a conversation whose first request is number `first`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSource:
    """The turns of conversations as requests: each but a first one is sent some time after the one before it ended."""

    conversations: Conversations
    think_s: float
    seed: int
    _firsts: list[int] = field(default_factory=lambda: [0], compare=False, repr=False)

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call; `at_s` is that of a conversation's first."""
        session = self._session_of(index)
        first = self._firsts[session]
        request = self.conversations.draw(session, first, index - first)
        if index == first:
            return replace(request, at_s=at_s)
        return replace(request, after=index - 1, think_s=self._think_s(index))

    def schedule(self, starts_s: Sequence[float]) -> tuple[float | None, ...]:
        """The times of requests when conversations start at `starts_s`: none but the first of each has one."""
        self._count(len(starts_s))
        spans = pairwise(self._firsts[: len(starts_s) + 1])
        return tuple(
            at_s
            for start_s, (first, after) in zip(starts_s, spans, strict=True)
            for at_s in (start_s, *(None,) * (after - first - 1))
        )

    def _session_of(self, index: int) -> int:
        while self._firsts[-1] <= index:
            self._count(len(self._firsts))
        return bisect_right(self._firsts, index) - 1

    def _count(self, sessions: int) -> None:
        while len(self._firsts) <= sessions:
            self._firsts.append(self._firsts[-1] + self.conversations.turns(len(self._firsts) - 1))

    def _think_s(self, index: int) -> float:
        return float(generator(self.seed, Stream.THINKING, index).exponential(self.think_s))
