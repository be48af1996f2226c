"""Configurations and traces that the tests of the models share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from autotune.models.config import SchedulerConfig, from_vllm_args
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.models.simulation import Trace, trace_of


def shape(name: str = "meta-llama/Llama-3.1-8B") -> ModelShape:
    found = shape_of(name)
    assert found is not None
    return found


def gpu(name: str = "h100") -> GpuSpec:
    found = gpu_of(name)
    assert found is not None
    return found


def config(**args: Any) -> SchedulerConfig:
    """Llama 3.1 8B on an H100 for requests of up to 1024 tokens, with `args` changed."""
    return from_vllm_args({"max_model_len": 1024, **args}, shape(), gpu())


def chat(count: int = 200, rps: float = 20.0, seed: int = 1) -> Trace:
    rng = np.random.default_rng(seed)
    return trace_of(
        rng.integers(50, 600, count),
        rng.integers(5, 300, count),
        np.cumsum(rng.exponential(1 / rps, count)),
        rng.integers(-1, 4, count),
        100,
    )


def traces(families: int = 4, least_tokens: int = 1) -> st.SearchStrategy[Trace]:
    """Up to 40 requests of at most 1024 tokens in bursts or far apart; those of one of the `families` share a prefix,
    and are of `least_tokens` or more in and out."""
    request = st.tuples(
        st.integers(least_tokens, 700),
        st.integers(least_tokens, 300),
        st.floats(0, 0.5),
        st.integers(-1, families - 1),
        st.integers(0, 300),
    )
    return st.lists(request, min_size=1, max_size=40).map(_trace)


def _trace(requests: list[tuple[int, int, float, int, int]]) -> Trace:
    prompt, output, gaps, group, prefix = (list(column) for column in zip(*requests, strict=True))
    return trace_of(prompt, output, np.cumsum(gaps), group, prefix)


def configs() -> st.SearchStrategy[SchedulerConfig]:
    """Every switch of the scheduler, in combinations that vLLM accepts."""
    return st.fixed_dictionaries(
        {
            "max_num_seqs": st.sampled_from([1, 2, 8, 64]),
            "max_num_batched_tokens": st.sampled_from([64, 256, 2048]),
            "block_size": st.sampled_from([16, 64]),
            "long_prefill_token_threshold": st.sampled_from([0, 32, 500]),
            "enable_prefix_caching": st.booleans(),
            "async_scheduling": st.booleans(),
            "enforce_eager": st.booleans(),
            "scheduler_reserve_full_isl": st.booleans(),
            "stream_interval": st.sampled_from([1, 10]),
        }
    ).map(lambda args: config(**args))
