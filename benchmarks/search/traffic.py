"""The requests of a landscape: a finite sample for each study, a long one for the truth."""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from autotune.models.simulation import Trace
from autotune.records.spec import FixedLength, Length, UniformLength, WorkloadSpec

Ints = NDArray[np.int64]


@cache
def requests(workload: WorkloadSpec, count: int, seed: int) -> Trace:
    """Draw `count` requests of a synthetic workload, one a second on average (Poisson)."""
    rng = np.random.default_rng(seed)
    assert workload.input_tokens is not None
    assert workload.output_tokens is not None
    prefix = workload.prefix
    return Trace(
        arrival_s=np.cumsum(rng.exponential(size=count)),
        prompt_tokens=_lengths(workload.input_tokens, count, rng),
        output_tokens=_lengths(workload.output_tokens, count, rng),
        prefix_group=rng.integers(prefix.groups, size=count) if prefix else np.full(count, -1),
        prefix_tokens=np.full(count, prefix.tokens if prefix else 0),
    )


def _lengths(length: Length, count: int, rng: np.random.Generator) -> Ints:
    if isinstance(length, FixedLength):
        return np.full(count, length.tokens)
    if isinstance(length, UniformLength):
        return rng.integers(length.low, length.high + 1, count)
    drawn = rng.lognormal(np.log(length.median), length.sigma, count)
    return np.clip(np.round(drawn), length.low, length.high).astype(np.int64)
