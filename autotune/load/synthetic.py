"""Synthetic requests of exact lengths, alone or as the turns of conversations."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.load.lengths import Pairs, mean, sample
from autotune.load.seeds import Stream, generator
from autotune.load.text import Text
from autotune.records.spec import PrefixSpec, SessionSpec
from autotune.records.trial import RequestPlan

if TYPE_CHECKING:
    from numpy.random import Generator


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticSource:
    """Prompts of which nothing is shared between requests but `prefix`, and nothing with another level."""

    lengths: Pairs
    prefix: PrefixSpec | None
    text: Text
    seed: int

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        rng = generator(self.seed, Stream.REQUEST, index)
        prompt_tokens, output_tokens = self.lengths.draw(rng)
        group, head = prefix_of(self.prefix, rng, self.text, self.seed)
        return RequestPlan(
            index=index,
            at_s=at_s,
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            prompt_ids=head + self.text.tokens(rng, prompt_tokens - len(head)),
            prefix_group=group,
            prefix_tokens=len(head),
        )


def prefix_of(prefix: PrefixSpec | None, rng: Generator, text: Text, seed: int) -> tuple[int, tuple[int, ...]]:
    """Draw a group of the shared prefix: its number, -1 for none, and its tokens."""
    if prefix is None:
        return -1, ()
    group = int(rng.integers(prefix.groups))
    return group, text.tokens(generator(seed, Stream.PREFIX, group), prefix.tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticConversations:
    """Conversations whose turns hold all that was said before.

    What stands for the model's answers is made up beforehand, so that a prompt and its length are known before the
    engine runs and are the same for every engine. The engine's own answer differs from it: what a prefix cache can have
    of a turn is the prompt of the turn before, not the answer after it.
    """

    lengths: Pairs
    prefix: PrefixSpec | None
    sessions: SessionSpec
    text: Text
    seed: int
    _made: dict[int, list[RequestPlan]] = field(default_factory=dict, compare=False, repr=False)

    @property
    def mean_turns(self) -> float:
        """Turns of a conversation on average."""
        return mean(self.sessions.turns)

    def turns(self, session: int) -> int:
        """How many turns conversation number `session` has."""
        return sample(self.sessions.turns, generator(self.seed, Stream.SESSION, session))

    def draw(self, session: int, first: int, turn: int) -> RequestPlan:
        """Turn number `turn` of a conversation whose first request is number `first`."""
        if session not in self._made:  # turns are asked for one after the other: each would make all before it again
            self._made.clear()
            self._made[session] = self._requests(session, first)
        return self._made[session][turn]

    def _requests(self, session: int, first: int) -> list[RequestPlan]:
        rng = generator(self.seed, Stream.SESSION, session)
        turns = sample(self.sessions.turns, rng)
        group, said = prefix_of(self.prefix, rng, self.text, self.seed)
        shared, requests = len(said), []
        for index in range(first, first + turns):
            rng = generator(self.seed, Stream.REQUEST, index)
            new_tokens, output_tokens = self.lengths.draw(rng)
            prompt = said + self.text.tokens(rng, new_tokens)
            requests.append(_request(index, prompt, output_tokens, group, shared))
            group, shared = self._own_group(session), len(prompt)
            said = prompt + self.text.tokens(rng, output_tokens)
        return requests

    def _own_group(self, session: int) -> int:
        return session + (self.prefix.groups if self.prefix else 0)


def _request(index: int, prompt: tuple[int, ...], output_tokens: int, group: int, shared: int) -> RequestPlan:
    return RequestPlan(
        index=index,
        at_s=None,
        output_tokens=output_tokens,
        prompt_tokens=len(prompt),
        prompt_ids=prompt,
        prefix_group=group,
        prefix_tokens=shared,
    )
