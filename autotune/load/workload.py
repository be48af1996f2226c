"""From a workload and a load to the plan of one level: which requests, of what lengths, at what times.

A plan is a pure function of its seed. Requests are made when they are asked for, each from its own leaf of the seed
tree, so that a closed loop, which can't know how many it will need, has as many as it can send.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol, overload

from autotune.errors import InputError
from autotune.load.arrivals import poisson
from autotune.load.dataset import DatasetSource, read_dataset
from autotune.load.lengths import longest, sample, shortest
from autotune.load.seeds import Stream, generator
from autotune.records.spec import Length, LoadSpec, PrefixSpec, WorkloadSpec
from autotune.records.trial import LevelPlan, RequestPlan

if TYPE_CHECKING:
    from numpy.random import Generator

# Token ids that any tokenizer of a served model has and none of them treats as special, for when its size is unknown.
UNKNOWN_VOCAB = (100, 8000)
# Special tokens stand at both ends: Mistral's tekken keeps the first 1,000 of 131,072 ids for them, DeepSeek-V3 the
# last 1,280 of 129,280. A share of 2 % clears both, and at least 100 ids do for small vocabularies.
_MARGIN_RATIO = 0.02
_MARGIN_MIN = 100

ENDLESS = sys.maxsize
"""How many requests a closed loop has when `max_requests` doesn't say."""


class Source(Protocol):
    """Where requests come from: synthetic prompts, a dataset."""

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestSequence(Sequence[RequestPlan]):
    """The requests of a level in order, made on access; `size` may be `ENDLESS`, so never copy it whole."""

    source: Source
    size: int
    at_s: tuple[float, ...] | None = None

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
class SyntheticSource:
    """Prompts of random token ids in [ids[0], ids[1]): nothing is shared between requests but `prefix`."""

    input_tokens: Length
    output_tokens: Length
    prefix: PrefixSpec | None
    ids: tuple[int, int]
    seed: int

    def draw(self, index: int, at_s: float | None) -> RequestPlan:
        """The request `index`, the same at every call."""
        rng = generator(self.seed, Stream.REQUEST, index)
        prompt_tokens = sample(self.input_tokens, rng)
        output_tokens = sample(self.output_tokens, rng)
        group, head = self._prefix(rng)
        return RequestPlan(
            index=index,
            at_s=at_s,
            output_tokens=output_tokens,
            prompt_tokens=prompt_tokens,
            prompt_ids=head + self._ids(rng, prompt_tokens - len(head)),
            prefix_group=group,
            prefix_tokens=len(head),
        )

    def _prefix(self, rng: Generator) -> tuple[int, tuple[int, ...]]:
        if self.prefix is None:
            return -1, ()
        group = int(rng.integers(self.prefix.groups))
        return group, self._ids(generator(self.seed, Stream.PREFIX, group), self.prefix.tokens)

    def _ids(self, rng: Generator, count: int) -> tuple[int, ...]:
        return tuple(rng.integers(*self.ids, size=count).tolist())


def build_level(
    workload: WorkloadSpec,
    load: LoadSpec,
    *,
    seed: int,
    vocab_size: int | None = None,
    max_total_tokens: int | None = None,
) -> LevelPlan:
    """Plan one level of `load` with requests of `workload`; equal arguments give equal plans.

    `max_requests` counts every request sent, those of the warm-up too. `vocab_size` None: ids that every tokenizer has.
    `max_total_tokens`: what the engine holds of prompt and output together; None: not checked. Raises InputError when
    the workload can't be built, doesn't fit or has a dataset with bad lines.
    """
    if (load.poisson_rps is None) == (load.concurrency is None):
        raise InputError("a load needs exactly one of poisson_rps and concurrency", "set one of them")
    source = _source(workload, seed, vocab_size, max_total_tokens)
    duration_s = load.duration_s
    if load.poisson_rps is None:
        requests = RequestSequence(source=source, size=load.max_requests or ENDLESS)
    else:
        at_s = poisson(load.poisson_rps, load.warmup_s + duration_s, seed)
        if load.max_requests is not None and load.max_requests < len(at_s):
            # The window ends where the first request that is left out would have come: its rate stays the true one.
            duration_s = at_s[load.max_requests] - load.warmup_s
            at_s = at_s[: load.max_requests]
        requests = RequestSequence(source=source, size=len(at_s), at_s=at_s)
        _check_arrivals(load, at_s)
    return LevelPlan(
        requests=requests,
        offered_rps=load.offered_rps,
        concurrency=load.concurrency,
        warmup_s=load.warmup_s,
        duration_s=duration_s,
        seed=seed,
    )


def _check_arrivals(load: LoadSpec, at_s: tuple[float, ...]) -> None:
    if not at_s or at_s[-1] < load.warmup_s:
        raise InputError(
            f"no request would arrive after the warm-up of {load.warmup_s:g} s: {len(at_s)} requests"
            f" at {load.poisson_rps:g} requests a second",
            "raise poisson_rps, duration_s or max_requests, or shorten warmup_s",
        )


def _source(workload: WorkloadSpec, seed: int, vocab_size: int | None, max_total_tokens: int | None) -> Source:
    if workload.dataset is not None:
        rows = read_dataset(workload.dataset, needs_max_tokens=workload.output_tokens is None)
        return DatasetSource(rows=rows, output_tokens=workload.output_tokens, seed=seed)
    if workload.input_tokens is None or workload.output_tokens is None:
        raise InputError(
            f"workload `{workload.shape}` has no prompts: it needs input_tokens and output_tokens, or a dataset",
            "add the missing lengths",
        )
    _check_fits(workload.input_tokens, workload.output_tokens, workload.prefix, max_total_tokens)
    return SyntheticSource(
        input_tokens=workload.input_tokens,
        output_tokens=workload.output_tokens,
        prefix=workload.prefix,
        ids=_plain_ids(vocab_size),
        seed=seed,
    )


def _check_fits(prompt: Length, output: Length, prefix: PrefixSpec | None, max_total_tokens: int | None) -> None:
    if prefix is not None and prefix.tokens > shortest(prompt):
        raise InputError(
            f"the shared prefix of {prefix.tokens} tokens exceeds the shortest prompt, {shortest(prompt)} tokens",
            "lower prefix.tokens or raise the low end of input_tokens",
        )
    total = longest(prompt) + longest(output)
    if max_total_tokens is not None and total > max_total_tokens:
        raise InputError(
            f"the longest request needs {longest(prompt)} + {longest(output)} = {total} tokens,"
            f" the engine holds {max_total_tokens}",
            "shorten input_tokens or output_tokens, or raise the engine's maximum length",
        )


def _plain_ids(vocab_size: int | None) -> tuple[int, int]:
    """Half-open range of token ids without special meaning."""
    if vocab_size is None:
        return UNKNOWN_VOCAB
    if vocab_size < 2:
        raise InputError(f"a vocabulary of {vocab_size} tokens can't make prompts", "check the model's config.json")
    margin = min(max(_MARGIN_MIN, int(vocab_size * _MARGIN_RATIO)), vocab_size // 4)
    return margin, vocab_size - margin
