"""Rates: what arrived inside the window, whenever its request began.

Counting arrivals instead of whole requests makes both edges of the window unbiased: what arrives from requests that
began before it balances what its own deliver after it. A request's tokens are spread evenly over its chunks; its prompt
counts at its first token, when the engine has worked it off.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autotune.measure import estimates
from autotune.measure.samples import CUT
from autotune.measure.violations import is_good
from autotune.records.spec import Slo
from autotune.records.trial import Estimate, LevelRecord, RequestRecord

_BINS = 60
"""Pieces of the window that a rate's interval is estimated from: five for each cosine."""

Series = NDArray[np.float64]


def rates(level: LevelRecord, slos: Sequence[Slo], gpus: int, confidence: float) -> dict[str, Estimate]:
    """Return every rate by metric name; empty when the window is empty or nothing was sent."""
    begin, end = level.window_s
    if end <= begin or not level.requests:
        return {}
    delivering = [r for r in level.requests if r.error in {None, CUT}]
    finished = [r for r in level.requests if r.error is None and r.done_s is not None]
    output = _output_tokens(delivering)
    prompts = [(r.chunk_s[0], float(r.prompt_tokens or r.asked_prompt_tokens or 0)) for r in delivering if r.chunk_s]
    arrivals = {
        "output_tok_per_s": output,
        "total_tok_per_s": [*output, *prompts],
        "request_rps": [(r.done_s or 0.0, 1.0) for r in finished],
        "goodput_rps": [(r.done_s or 0.0, 1.0) for r in finished if is_good(r, slos)],
    }
    plain = {name: _rate(pairs, level.window_s, confidence) for name, pairs in arrivals.items()}
    shared = [name for name in plain if name != "request_rps"]
    return plain | {f"{name}_per_gpu": _divided(plain[name], max(gpus, 1)) for name in shared}


def _output_tokens(requests: Sequence[RequestRecord]) -> list[tuple[float, float]]:
    """(arrival, tokens) of every chunk. A request without usage (cut) gets the level's tokens a chunk, else one."""
    counted = [r for r in requests if r.output_tokens is not None and r.chunk_s]
    chunks = sum(len(r.chunk_s) for r in counted)
    usual = sum(r.output_tokens or 0 for r in counted) / chunks if chunks else 1.0
    return [
        (at_s, usual if r.output_tokens is None else r.output_tokens / len(r.chunk_s))
        for r in requests
        for at_s in r.chunk_s
    ]


def _rate(arrivals: Sequence[tuple[float, float]], window_s: tuple[float, float], confidence: float) -> Estimate:
    """Amount a second in the window, its interval from the series of rates in equal pieces; n counts arrivals."""
    begin, end = window_s
    at_s, amounts = np.array(arrivals, dtype=np.float64).reshape(-1, 2).T
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
