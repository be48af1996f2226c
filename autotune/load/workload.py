"""From a workload and a load to the plan of one level: which requests, of what lengths, at what times.

A plan is a pure function of its seed. Requests are made when they are asked for, each from its own leaf of the seed
tree, so that a closed loop, which can't know how many it will need, has as many as it can send.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, overload

from autotune.errors import InputError
from autotune.load.arrivals import arrival_times
from autotune.load.dataset import DatasetConversations, DatasetSource, Shuffled, read_dataset
from autotune.load.lengths import DrawnPairs, Pairs
from autotune.load.pairs_file import read_pairs
from autotune.load.sessions import Conversations, SessionSource
from autotune.load.synthetic import SyntheticConversations, SyntheticSource
from autotune.load.text import Text, text_of
from autotune.load.trace_file import Recorded
from autotune.load.traces import replay_of, trace_source
from autotune.records.spec import LoadSpec, SessionSpec, TraceArrivals, WorkloadSpec
from autotune.records.trial import LevelPlan, RequestPlan

_KINDS = ("poisson_rps", "constant_rps", "gamma", "bursts", "ramp", "trace", "concurrency")

ENDLESS = sys.maxsize
"""How many requests a closed loop has when `max_requests` doesn't say."""


class Source(Protocol):
    """Where requests come from: synthetic prompts, conversations, a dataset, a trace."""

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSequence(Sequence[RequestPlan]):
    """The requests of a level in order, made on access; `size` may be `ENDLESS`, so never copy it whole."""

    source: Source
    size: int
    at_s: tuple[float | None, ...] | None = None

    def __len__(self) -> int:
        return self.size

    @overload
    def __getitem__(self, index: int) -> RequestPlan: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[RequestPlan, ...]: ...
    def __getitem__(self, index: int | slice) -> RequestPlan | tuple[RequestPlan, ...]:
        if isinstance(index, slice):
            return tuple(self[i] for i in range(*index.indices(self.size)))
        if not -self.size <= index < self.size:
            raise IndexError(index)
        index %= self.size
        return self.source.draw(index, None if self.at_s is None else self.at_s[index])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    """When requests arrive, and where the window ends for want of more."""

    at_s: tuple[float | None, ...]
    end_s: float


def build_level(
    workload: WorkloadSpec,
    load: LoadSpec,
    *,
    seed: int,
    vocab_size: int | None = None,
    max_total_tokens: int | None = None,
    model: str | None = None,
) -> LevelPlan:
    """Plan one level of `load` with requests of `workload`; equal arguments give equal plans.

    `max_requests` counts every request sent, those of the warm-up too. `vocab_size` None: ids that every tokenizer has.
    `max_total_tokens`: what the engine holds of prompt and output together; None: not checked. `model`: folder or name
    of the model whose tokenizer writes natural text. Raises InputError when the workload can't be built, doesn't fit,
    or its file has many bad lines; a few are skipped and told in the plan's notes.
    """
    kinds = [field for field in _KINDS if getattr(load, field) is not None]
    if len(kinds) != 1:
        raise InputError(f"a level needs one kind of load, not {' and '.join(kinds) or 'none'}", "set one of them")
    if load.trace is not None:
        return _replayed(load.trace, load, text_of(workload, vocab_size, model), seed, max_total_tokens)
    source, notes = _source(workload, seed, vocab_size, max_total_tokens, model)
    if load.concurrency is not None:
        requests = RequestSequence(source=source, size=load.max_requests or ENDLESS)
        return _plan(load, requests, seed, load.duration_s, notes)
    schedule = _schedule(load, source, seed)
    notes += _unsteady(load, source)
    requests = RequestSequence(source=source, size=len(schedule.at_s), at_s=schedule.at_s)
    return _plan(load, requests, seed, schedule.end_s - load.warmup_s, notes)


def _plan(load: LoadSpec, requests: RequestSequence, seed: int, duration_s: float, notes: tuple[str, ...]) -> LevelPlan:
    if load.concurrency is None:
        _check_arrivals(load, requests.at_s or ())
    return LevelPlan(
        requests=requests,
        offered_rps=load.offered_rps,
        concurrency=load.concurrency,
        warmup_s=load.warmup_s,
        duration_s=duration_s,
        seed=seed,
        notes=notes,
    )


# --- when -------------------------------------------------------------------------------------------------------------


def _schedule(load: LoadSpec, source: Source, seed: int) -> _Schedule:
    """Times of the requests of an open loop; those of a session's later turns are None.

    Sessions arrive so often that their requests make up the offered rate.
    """
    end_s = load.warmup_s + load.duration_s
    if isinstance(source, SessionSource):
        starts_s = arrival_times(load, seed, a_request=1 / source.conversations.mean_turns)
        return _cut(source.schedule(starts_s), load.max_requests, end_s)
    return _cut(arrival_times(load, seed), load.max_requests, end_s)


def _unsteady(load: LoadSpec, source: Source) -> tuple[str, ...]:
    """Later turns come when users have thought: until the first conversations are over, requests are fewer."""
    if not isinstance(source, SessionSource):
        return ()
    thinking_s = (source.conversations.mean_turns - 1) * source.think_s
    if thinking_s <= load.warmup_s:
        return ()
    warmup = f"the warm-up is {load.warmup_s:g} s: at first requests come more slowly than offered"
    return (f"users think for {thinking_s:.3g} s of a conversation on average, {warmup}",)


def _cut(at_s: tuple[float | None, ...], most: int | None, end_s: float) -> _Schedule:
    """At most `most` requests, sessions whole.

    The window ends where the first request that is left out would have come: its rate stays the true one.
    """
    if most is None or most >= len(at_s):
        return _Schedule(at_s=at_s, end_s=end_s)
    place = most
    while place and at_s[place] is None:
        place -= 1
    return _Schedule(at_s=at_s[:place], end_s=at_s[place] or 0.0)


def _check_arrivals(load: LoadSpec, at_s: tuple[float | None, ...]) -> None:
    last_s = max((time_s for time_s in at_s if time_s is not None), default=-1.0)
    if last_s < load.warmup_s:
        rate = f" at {load.offered_rps:g} requests a second" if load.offered_rps else ""
        raise InputError(
            f"no request would arrive after the warm-up of {load.warmup_s:g} s: {len(at_s)} requests{rate}",
            "raise the rate, duration_s or max_requests, or shorten warmup_s",
        )


def _replayed(trace: TraceArrivals, load: LoadSpec, text: Text, seed: int, max_total_tokens: int | None) -> LevelPlan:
    horizon_s = load.warmup_s + load.duration_s
    replay = replay_of(trace, horizon_s)
    over = [each for each in replay.recorded if max_total_tokens and _total(each) > max_total_tokens]
    if over:
        raise InputError(
            f"{trace.file}: {len(over)} of {len(replay.recorded)} requests need more than the {max_total_tokens} tokens"
            f" that the engine holds, the longest {max(map(_total, over))}",
            "raise the engine's maximum length, or take another trace",
        )
    schedule = _cut(replay.at_s, load.max_requests, replay.end_s or horizon_s)
    source = trace_source(replay, text, seed)
    requests = RequestSequence(source=source, size=len(schedule.at_s), at_s=schedule.at_s)
    plan = _plan(load, requests, seed, schedule.end_s - load.warmup_s, replay.notes)
    return replace(plan, offered_rps=len(requests) / schedule.end_s)


def _total(recorded: Recorded) -> int:
    return recorded.prompt_tokens + recorded.output_tokens


# --- what -------------------------------------------------------------------------------------------------------------


def _source(
    workload: WorkloadSpec, seed: int, vocab_size: int | None, max_total_tokens: int | None, model: str | None
) -> tuple[Source, tuple[str, ...]]:
    if workload.dataset is not None:
        found = read_dataset(workload.dataset, needs_max_tokens=workload.output_tokens is None)
        shuffled = Shuffled(rows=found.rows, output_tokens=workload.output_tokens, seed=seed)
        if workload.sessions is None:
            return DatasetSource(shuffled=shuffled), found.notes
        conversations: Conversations = DatasetConversations(shuffled=shuffled, sessions=workload.sessions)
        return _sessions(conversations, workload.sessions, seed), found.notes
    lengths, notes = _lengths(workload)
    text = text_of(workload, vocab_size, model)
    _check_fits(lengths, workload, max_total_tokens)
    if workload.sessions is None:
        return SyntheticSource(lengths=lengths, prefix=workload.prefix, text=text, seed=seed), notes
    conversations = SyntheticConversations(
        lengths=lengths, prefix=workload.prefix, sessions=workload.sessions, text=text, seed=seed
    )
    return _sessions(conversations, workload.sessions, seed), notes


def _sessions(conversations: Conversations, spec: SessionSpec, seed: int) -> SessionSource:
    return SessionSource(conversations=conversations, think_s=spec.think_s, seed=seed)


def _lengths(workload: WorkloadSpec) -> tuple[Pairs, tuple[str, ...]]:
    if workload.lengths is not None:
        return read_pairs(workload.lengths)
    if workload.input_tokens is None or workload.output_tokens is None:
        raise InputError(
            f"workload `{workload.shape}` has no prompts: it needs input_tokens and output_tokens, or a dataset",
            "add the missing lengths",
        )
    pairs = DrawnPairs(prompt=workload.input_tokens, answer=workload.output_tokens, correlation=workload.correlation)
    return pairs, ()


def _check_fits(lengths: Pairs, workload: WorkloadSpec, max_total_tokens: int | None) -> None:
    prefix, sessions, shortest = workload.prefix, workload.sessions, lengths.shortest_prompt
    if prefix is not None and sessions is None and prefix.tokens > shortest:
        raise InputError(
            f"the shared prefix of {prefix.tokens} tokens exceeds the shortest prompt, {shortest} tokens",
            "lower prefix.tokens or raise the low end of input_tokens",
        )
    prompt, answer = workload.last_turn(*lengths.longest)
    if max_total_tokens is not None and prompt + answer > max_total_tokens:
        raise InputError(
            f"the longest request needs {prompt} + {answer} = {prompt + answer} tokens,"
            f" the engine holds {max_total_tokens}",
            "shorten input_tokens or output_tokens, or raise the engine's maximum length",
        )
