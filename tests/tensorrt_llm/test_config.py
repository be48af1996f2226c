"""What options come to in the simulation: TensorRT-LLM's defaults, its share of memory, its admission."""

from __future__ import annotations

from typing import Any

import pytest

from autotune.models.config import RefusedConfig, SchedulerConfig
from autotune.models.memory import plan_memory
from autotune.models.scheduler import Scheduler
from autotune.models.shapes import gpu_of, shape_of
from autotune.models.trtllm_config import from_trtllm_args


def config(gpu: str = "h100", **args: Any) -> SchedulerConfig:
    shape, found = shape_of("meta-llama/Llama-3.1-8B-Instruct"), gpu_of(gpu, "tensorrt_llm")
    assert shape is not None
    assert found is not None
    return from_trtllm_args(args, shape, found)


def test_the_documented_defaults() -> None:
    found = config()
    assert (found.max_num_seqs, found.max_num_batched_tokens, found.chunked_prefill) == (2048, 8192, False)
    assert (found.block_size, found.prefix_caching, found.no_evict, found.max_graph) == (32, True, True, 128)


def test_the_cache_takes_its_share_of_what_is_left_and_not_of_all() -> None:
    half, whole = (
        plan_memory(config(kv_cache_config={"free_gpu_memory_fraction": share})).kv_bytes for share in (0.5, 1.0)
    )
    assert half == pytest.approx(whole / 2, rel=1e-6)
    assert whole < plan_memory(config()).total_bytes - plan_memory(config()).weights_bytes


def test_an_fp8_cache_holds_twice_the_tokens_and_max_tokens_bounds_it() -> None:
    plain = plan_memory(config()).kv_tokens
    assert plan_memory(config(kv_cache_config={"dtype": "fp8"})).kv_tokens == pytest.approx(2 * plain, rel=1e-3)
    assert plan_memory(config(kv_cache_config={"max_tokens": 6400})).kv_tokens <= 6400


@pytest.mark.parametrize(("policy", "running"), [("GUARANTEED_NO_EVICT", 2), ("MAX_UTILIZATION", 5)])
def test_without_eviction_a_request_is_admitted_only_if_all_of_it_will_fit(policy: str, running: int) -> None:
    found = config(scheduler_config={"capacity_scheduler_policy": policy}, enable_chunked_prefill=True)
    scheduler = Scheduler(found, blocks=20)
    for _ in range(5):
        scheduler.add(64, 192)  # two blocks now, eight in the end
    scheduler.step()
    scheduler.step()
    assert scheduler.running == running


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({"pipeline_parallel_size": 2}, "pipeline_parallel_size=2 is not simulated"),
        ({"speculative_config": {"decoding_type": "NGram"}}, "speculative_config is not simulated"),
        ({"tensor_parallel_size": 3}, "can't be divided"),
    ],
)
def test_what_is_refused(args: dict[str, Any], said: str) -> None:
    with pytest.raises(RefusedConfig, match=said):
        config(**args)
    with pytest.raises(RefusedConfig, match="compute capability"):
        config("a100", kv_cache_config={"dtype": "fp8"})
