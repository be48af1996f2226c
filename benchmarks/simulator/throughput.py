"""Offline output throughput on one GPU against 14 published figures.

All requests are there from the start; fixed lengths, fp8 weights and fp8 KV, as published. No API server takes part.
TensorRT-LLM admits a request only when prompt and output fit for certain, and gives 90 % of what the weights leave to
the KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from autotune.models.config import SchedulerConfig, from_vllm_args
from autotune.models.memory import plan_memory
from autotune.models.simulation import simulate, trace_of
from autotune.models.steptime import HostCosts
from benchmarks.simulator.latency import known, read

REQUESTS = 3000
KV_FRACTION = 0.9
OFFLINE = HostCosts(api_latency_s=0.0, api_request_s=0.0, api_prompt_token_s=0.0, api_token_s=0.0, api_chunk_s=0.0)
TRTLLM = {"max_num_seqs": 2048, "max_num_batched_tokens": 8192}
VLLM = {"max_num_seqs": 1024, "max_num_batched_tokens": 16384}
"""The engines' own limits for offline use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    source: str
    model: str
    gpu: str
    input_tokens: int
    output_tokens: int
    published: float
    simulated: float

    @property
    def error(self) -> float:
        """Signed, relative."""
        return self.simulated / self.published - 1


def config_of(source: str, model: str, gpu: str, tokens: int) -> SchedulerConfig:
    trtllm = source.startswith("TRTLLM")
    spec, shape = known(gpu, f"meta-llama/{model}", "tensorrt_llm" if trtllm else "vllm")
    args = {"quantization": "fp8", "kv_cache_dtype": "fp8", "enable_prefix_caching": False, "max_model_len": tokens}
    config = from_vllm_args({**args, **(TRTLLM if trtllm else VLLM)}, shape, spec)
    if not trtllm:
        return config
    weights = plan_memory(config).weights_bytes / spec.memory_bytes
    return replace(config, no_evict=True, gpu_memory_utilization=weights + KV_FRACTION * (1 - weights))


def figures() -> Iterator[Figure]:
    """Every published figure with what the simulator says."""
    for row in read("published_throughput.csv"):
        inputs, outputs = int(row["input_tokens"]), int(row["output_tokens"])
        config = config_of(row["source"], row["model"], row["gpu"], inputs + outputs)
        result = simulate(trace_of([inputs] * REQUESTS, outputs), config, host=OFFLINE)
        yield Figure(
            source=row["source"],
            model=row["model"],
            gpu=row["gpu"],
            input_tokens=inputs,
            output_tokens=outputs,
            published=float(row["output_tok_per_s"]),
            simulated=result.produced_tokens / result.end_s,
        )
