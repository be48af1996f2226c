"""TTFT and TPOT against 105 measured points, replayed with the protocol of the public benchmark they come from.

Closed loop of 10 x concurrency requests, input and output lengths drawn from U(0.8, 1) of the nominal ones; mean TPOT
and median TTFT are compared (what the published rows are is not stated; a median is what 10 x concurrency of a start-up
burst leaves meaningful). Nothing in the simulator was fitted to these rows.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from autotune.models.config import SchedulerConfig, from_vllm_args
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.models.simulation import SimResult, simulate, trace_of

DATA = Path(__file__).parent / "data"
PROMPTS_PER_SLOT = 10
SHORTEST_RATIO = 0.8
ENGINE = {"quantization": "fp8", "gpu_memory_utilization": 0.9, "max_model_len": 10240, "enable_prefix_caching": False}
"""vLLM's defaults when the rows were measured; prompts were random, so the prefix cache could not help."""

KV_CACHE_DTYPE = {"h100": "auto", "h200": "fp8"}

SEED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    gpu: str
    tp: int
    input_tokens: int
    output_tokens: int
    concurrency: int
    ttft_ms: float
    tpot_ms: float
    simulated_ttft_ms: float
    simulated_tpot_ms: float
    preemptions: int

    @property
    def ttft_error(self) -> float:
        """Signed, relative."""
        return self.simulated_ttft_ms / self.ttft_ms - 1

    @property
    def tpot_error(self) -> float:
        return self.simulated_tpot_ms / self.tpot_ms - 1


def read(name: str) -> list[dict[str, str]]:
    """Rows of a data file; the first line names its source."""
    with (DATA / name).open(encoding="utf-8") as file:
        return list(csv.DictReader(line for line in file if not line.startswith("#")))


def known(gpu: str, model: str, engine: str = "vllm") -> tuple[GpuSpec, ModelShape]:
    spec, shape = gpu_of(gpu, engine), shape_of(model)
    if spec is None or shape is None:
        raise SystemExit(f"no constants for {model} on {gpu}")
    return spec, shape


def config_of(gpu: str, tp: int) -> SchedulerConfig:
    spec, shape = known(gpu, "meta-llama/Llama-3.1-70B")
    return from_vllm_args({**ENGINE, "tensor_parallel_size": tp, "kv_cache_dtype": KV_CACHE_DTYPE[gpu]}, shape, spec)


def replay(config: SchedulerConfig, input_tokens: int, output_tokens: int, concurrency: int) -> SimResult:
    rng = np.random.default_rng(SEED)
    count = PROMPTS_PER_SLOT * concurrency

    def lengths(nominal: int) -> np.ndarray:
        return rng.integers(int(SHORTEST_RATIO * nominal), nominal + 1, count)

    return simulate(trace_of(lengths(input_tokens), lengths(output_tokens)), config, concurrency=concurrency)


def rows() -> Iterator[Row]:
    """Every measured point with what the simulator says."""
    for point in read("measured_llama70b_vllm.csv"):
        tp, concurrency = int(point["tp"]), int(point["concurrency"])
        size = int(point["input_tokens"]), int(point["output_tokens"])
        result = replay(config_of(point["gpu"], tp), *size, concurrency)
        yield Row(
            gpu=point["gpu"],
            tp=tp,
            input_tokens=size[0],
            output_tokens=size[1],
            concurrency=concurrency,
            ttft_ms=float(point["ttft_ms"]),
            tpot_ms=float(point["tpot_ms"]),
            simulated_ttft_ms=float(np.mean(result.ttft_s)) * 1e3,
            simulated_tpot_ms=float(np.nanmean(result.tpot_s)) * 1e3,
            preemptions=result.preemptions,
        )
