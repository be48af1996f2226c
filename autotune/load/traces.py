"""Replaying a trace: which of its requests a level sends, when, and what their prompts share."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.errors import InputError
from autotune.load.arrivals import REQUESTS_MAX
from autotune.load.seeds import Stream, generator
from autotune.load.text import Text
from autotune.load.trace_file import BLOCK_TOKENS, Recorded, read_trace
from autotune.records.spec import TraceArrivals
from autotune.records.trial import RequestPlan


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The part of a trace that a level replays: when each request goes out, which it is, and in which time round.

    `end_s`: where the trace ends before its level does, else None.
    """

    recorded: tuple[Recorded, ...]
    at_s: tuple[float, ...]
    rounds: tuple[int, ...]
    end_s: float | None
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceSource:
    """Prompts of the recorded lengths; blocks of one id are the same tokens, and other ones each time round."""

    replay: Replay
    shared: tuple[tuple[int, int], ...]
    text: Text
    seed: int

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        recorded, (group, shared_tokens) = self.replay.recorded[index], self.shared[index]
        return RequestPlan(
            index=index,
            at_s=at_s,
            output_tokens=recorded.output_tokens,
            prompt_tokens=recorded.prompt_tokens,
            prompt_ids=self._prompt(index, recorded),
            prefix_group=group,
            prefix_tokens=shared_tokens,
        )

    def _prompt(self, index: int, recorded: Recorded) -> tuple[int, ...]:
        if not recorded.blocks:
            return self.text.tokens(generator(self.seed, Stream.REQUEST, index), recorded.prompt_tokens)
        time_round = self.replay.rounds[index]
        blocks = (
            self.text.tokens(generator(self.seed, Stream.BLOCK, time_round, block), BLOCK_TOKENS)
            for block in recorded.blocks
        )
        return tuple(token for block in blocks for token in block)[: recorded.prompt_tokens]


def trace_source(replay: Replay, text: Text, seed: int) -> TraceSource:
    """Return the source of a replay's requests, what they share worked out."""
    return TraceSource(replay=replay, shared=shared_beginnings(replay), text=text, seed=seed)


def shared_beginnings(replay: Replay) -> tuple[tuple[int, int], ...]:
    """Return for each request the group it shares its beginning with (-1: none) and how many tokens of it.

    Shared is what at least one other request begins with too. A group is a branch below what most requests share; in
    virtual time, which knows no more than groups, the branches inside one pass for one another.
    """
    links: dict[tuple[int, int], int] = {}
    chains = [
        _chain(links, recorded.blocks, -1 - time_round)
        for recorded, time_round in zip(replay.recorded, replay.rounds, strict=True)
    ]
    users = Counter(link for chain in chains for link in chain)
    found = []
    for recorded, chain in zip(replay.recorded, chains, strict=True):
        common = [link for link in chain if users[link] > 1]
        group = next((link for link in common if users[link] <= len(chains) / 2), common[-1] if common else -1)
        found.append((group, min(len(common) * BLOCK_TOKENS, recorded.prompt_tokens)))
    return tuple(found)


def _chain(links: dict[tuple[int, int], int], blocks: tuple[int, ...], root: int) -> list[int]:
    """A number for each block with all before it, the same for the same beginning."""
    chain = []
    for block in blocks:
        root = links.setdefault((root, block), len(links))
        chain.append(root)
    return chain


# --- what a level replays ---------------------------------------------------------------------------------------------


def replay_of(trace: TraceArrivals, horizon_s: float) -> Replay:
    """Return what a level of `horizon_s` replays of a trace. Raises InputError for a file without such requests."""
    found = read_trace(trace.file, trace.start_s + horizon_s * trace.speed)
    part = [replace(row, at_s=row.at_s - trace.start_s) for row in found.rows if row.at_s >= trace.start_s]
    if not part:
        last_s = found.rows[-1].at_s
        raise InputError(f"{trace.file}: the last request is at {last_s:.6g} s", "lower load.trace.start_s")
    length_s = _length_s(part)
    times = _repeated(part, length_s, horizon_s * trace.speed, repeat=trace.repeat)
    end_s = None if trace.repeat or length_s >= horizon_s * trace.speed else length_s / trace.speed
    note = () if end_s is None else (f"the trace ends after {end_s:.6g} s of {horizon_s:.6g}: so does the level",)
    return Replay(
        recorded=tuple(row for row, _, _ in times),
        at_s=tuple(at_s / trace.speed for _, at_s, _ in times),
        rounds=tuple(time_round for _, _, time_round in times),
        end_s=end_s,
        notes=(*found.notes, *note),
    )


def _length_s(part: Sequence[Recorded]) -> float:
    """Seconds that a part of a trace lasts: to the last request, and a mean gap after it."""
    last_s, gaps = part[-1].at_s, len(part) - 1
    return last_s + (last_s / gaps if gaps and last_s else 1.0)


def _repeated(
    part: Sequence[Recorded], length_s: float, until_s: float, *, repeat: bool
) -> list[tuple[Recorded, float, int]]:
    """The requests before `until_s` with their times and the time round."""
    rounds = int(min(until_s / length_s, REQUESTS_MAX)) + 1 if repeat else 1
    if rounds * len(part) > REQUESTS_MAX:
        raise InputError(f"the trace would be repeated {rounds} times", "lower load.trace.speed or duration_s")
    return [
        (row, row.at_s + time_round * length_s, time_round)
        for time_round in range(rounds)
        for row in part
        if row.at_s + time_round * length_s < until_s
    ]
