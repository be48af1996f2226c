"""What the engine's own figures rule out: a launch whose log named an edge excludes every candidate that is no better.

In: records of failed launches and arguments. Out: why those arguments can't start, or None. Nothing is extrapolated: a
candidate is excluded only when it differs from a failed one in ways that take no less memory or leave no more of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import ge, le
from typing import Any

from autotune.records.spec import Args
from autotune.records.trial import Failure, Fault, Outcome, TrialRecord

SHORT_RATIO = 0.95  # profiling gives a few per cent more or less each time: a nearer miss says nothing of others
OTHERS_BYTES = 2**30  # a neighbour with more may have been the cause (vllm#55827)
ENGINE_KEYS = ("vllm", "simulated_engine", "torch", "cuda", "driver", "gpus", "cpu")
"""Versions that must be the same for a figure of one launch to say something about another."""


def _multiple(new: float, failed: float) -> bool:
    return new % failed == 0


NO_BETTER: Mapping[str, Callable[[float, float], bool]] = {
    "gpu_memory_utilization": le,
    "kv_cache_memory_bytes": le,
    "max_num_batched_tokens": ge,  # activations of a whole step are profiled
    "max_num_seqs": ge,  # so are the sampler's
    "block_size": _multiple,  # what is cut into larger blocks leaves no fewer tokens unused
}
"""Parameter -> whether a value leaves no more tokens in the KV cache than the one that failed, all else being equal."""

WITHOUT_EFFECT = frozenset({"stream_interval", "long_prefill_token_threshold", "async_scheduling", "scheduling_policy"})
"""Parameters that take no memory of the GPU worth counting."""

ON_PLAIN_DECODERS = frozenset({"enable_prefix_caching"})
"""The same, where every layer keeps all keys and values: hybrid models change their blocks for prefix caching."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """A launch that found no room for one longest request: its arguments, and the longest that would have fitted."""

    number: int
    args: Args
    max_model_len: int
    fits: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What failed launches of one model rule out on one engine and machine. `versions` are those of the launches."""

    versions: Mapping[str, str | None]
    plain_decoder: bool
    edges: tuple[Edge, ...] = ()

    def learned(self, record: TrialRecord) -> Bounds:
        """Return the bounds with what `record` adds; the same when it says nothing that holds here."""
        if record.failure is None or not self._comparable(record):
            return self
        edge = edge_of(record, record.failure)
        return self if edge is None else replace(self, edges=(*self.edges, edge))

    def excludes(self, args: Args) -> str | None:
        """Return why `args` can't start, by a launch that failed; None when they may."""
        return next((why for edge in self.edges if (why := self._excluded(edge, args)) is not None), None)

    def _comparable(self, record: TrialRecord) -> bool:
        return all(record.versions.get(key) == self.versions.get(key) for key in ENGINE_KEYS)

    def _excluded(self, edge: Edge, args: Args) -> str | None:
        neutral = WITHOUT_EFFECT | (ON_PLAIN_DECODERS if self.plain_decoder else frozenset())
        length = args.get("max_model_len", edge.max_model_len)
        if not isinstance(length, int) or length * SHORT_RATIO <= edge.fits:
            return None
        names = (args.keys() | edge.args.keys()) - neutral - {"max_model_len"}
        if not all(_no_better(name, args.get(name), edge.args.get(name)) for name in names):
            return None
        if length < edge.max_model_len and "max_num_batched_tokens" not in args:
            return None  # its default follows max_model_len
        return (
            f"trial {edge.number} found room for at most {edge.fits} tokens of one request in settings that leave no "
            f"less; max_model_len is {length}"
        )


def edge_of(record: TrialRecord, failure: Failure) -> Edge | None:
    """Return what a failed launch's log says about how long a request can be; None where it doesn't, or where another
    program's memory or pipeline stages make the figure doubtful (vllm#34076)."""
    if (failure.outcome, failure.fault) != (Outcome.OOM_STARTUP, Fault.CANDIDATE):
        return None
    if any(held > OTHERS_BYTES for held in record.others_bytes.values()):
        return None
    if record.args.get("pipeline_parallel_size", 1) != 1:
        return None
    length = record.args.get("max_model_len", failure.edges.get("max_model_len"))
    fits = failure.edges.get("max_model_len_that_fits", failure.edges.get("kv_cache_tokens"))
    if not isinstance(length, int | float) or fits is None or fits >= length * SHORT_RATIO:
        return None
    return Edge(number=record.number, args=record.args, max_model_len=int(length), fits=int(fits))


def _no_better(name: str, new: Any, failed: Any) -> bool:  # noqa: ANN401 - an argument's value
    if new == failed:
        return True
    compare = NO_BETTER.get(name)
    if compare is None or not _is_number(new) or not _is_number(failed):
        return False
    return compare(new, failed)


def _is_number(value: Any) -> bool:  # noqa: ANN401 - an argument's value
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0
