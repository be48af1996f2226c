"""Rates: what arrived inside the window, whenever its request began.

Counting arrivals instead of whole requests makes both edges of the window unbiased: what arrives from requests that
began before it balances what its own deliver after it. A request's tokens are spread evenly over its chunks; its prompt
counts at its first token, when the engine has worked it off.
"""

from __future__ import annotations

from collections.abc import Container, Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.measure import estimates
from autotune.measure.samples import CUT
from autotune.measure.violations import is_good
from autotune.records.metrics import PLAIN
from autotune.records.spec import Slo
from autotune.records.trial import Estimate, LevelRecord, RequestRecord

_BINS = 60
"""Pieces of the window that a rate's interval is estimated from: five for each cosine."""

Arrivals = tuple[NDArray[np.float64], NDArray[np.float64]]
"""When something came, in s, and how much of it."""


def rates(
    level: LevelRecord, slos: Sequence[Slo], gpus: int, confidence: float, wanted: Container[str]
) -> dict[str, Estimate]:
    """Return the rates that are wanted by metric name; empty when the window is empty or nothing was sent."""
    if level.window_s[1] <= level.window_s[0] or not level.requests:
        return {}
    found = {}
    for name, arrivals in _ARRIVALS.items():
        per_gpu = f"{name}_per_gpu"
        if name in wanted or per_gpu in wanted:
            found[name] = _rate(arrivals(level.requests, slos), level.window_s, confidence)
            if per_gpu in PLAIN:
                found[per_gpu] = _divided(found[name], max(gpus, 1))
    return found


def _output(requests: Sequence[RequestRecord], _: Sequence[Slo]) -> Arrivals:
    """Every chunk and its tokens. A request without usage (cut) gets the level's tokens a chunk, else one."""
    having = [r for r in _delivering(requests) if r.chunk_s]
    counted = [r for r in having if r.output_tokens is not None]
    chunks = sum(len(r.chunk_s) for r in counted)
    usual = sum(r.output_tokens or 0 for r in counted) / chunks if chunks else 1.0
    if not having:
        return np.empty(0), np.empty(0)
    tokens = [usual if r.output_tokens is None else r.output_tokens / len(r.chunk_s) for r in having]
    lengths = [len(r.chunk_s) for r in having]
    return np.concatenate([np.array(r.chunk_s) for r in having]), np.repeat(tokens, lengths)


def _prompts(requests: Sequence[RequestRecord], _: Sequence[Slo]) -> Arrivals:
    having = [r for r in _delivering(requests) if r.chunk_s]
    tokens = [float(r.prompt_tokens or r.asked_prompt_tokens or 0) for r in having]
    return np.array([r.chunk_s[0] for r in having]), np.array(tokens)


def _total(requests: Sequence[RequestRecord], slos: Sequence[Slo]) -> Arrivals:
    (chunk_s, output), (first_s, prompts) = _output(requests, slos), _prompts(requests, slos)
    return np.concatenate([chunk_s, first_s]), np.concatenate([output, prompts])


def _finished(requests: Sequence[RequestRecord], _: Sequence[Slo]) -> Arrivals:
    done_s = [r.done_s for r in requests if r.error is None and r.done_s is not None]
    return np.array(done_s, dtype=np.float64), np.ones(len(done_s))


def _good(requests: Sequence[RequestRecord], slos: Sequence[Slo]) -> Arrivals:
    return _finished([r for r in requests if r.error is None and is_good(r, slos)], slos)


def _delivering(requests: Sequence[RequestRecord]) -> list[RequestRecord]:
    return [r for r in requests if r.error in {None, CUT}]


_ARRIVALS = {
    "output_tok_per_s": _output,
    "total_tok_per_s": _total,
    "request_rps": _finished,
    "goodput_rps": _good,
}


def _rate(arrivals: Arrivals, window_s: tuple[float, float], confidence: float) -> Estimate:
    """Amount a second in the window, its interval from the series of rates in equal pieces; n counts arrivals."""
    begin, end = window_s
    at_s, amounts = arrivals
    inside = (at_s >= begin) & (at_s < end)
    pieces, _ = np.histogram(at_s[inside], bins=_BINS, range=window_s, weights=amounts[inside])
    value = float(amounts[inside].sum()) / (end - begin)
    half = estimates.half_width(pieces * (_BINS / (end - begin)), confidence)
    return Estimate(value=value, low=max(0.0, value - half), high=value + half, n=int(inside.sum()))


def _divided(estimate: Estimate, by: int) -> Estimate:
    low, high = estimate.low, estimate.high
    return Estimate(
        value=estimate.value / by,
        low=None if low is None else low / by,
        high=None if high is None else high / by,
        n=estimate.n,
    )
