"""What is worth trying first: the batch limits that `trtllm-bench` computes for a model, a GPU and a workload.

After `calc_engine_setting` and `finetune_setting` of tensorrt_llm/bench/build/tuning.py (1.2), restated: the KV cache's
requests set the batch, rounded up to be slightly optimistic, and the batch the tokens. File-checked.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autotune.engines.hardware import visible_gpus
from autotune.models.config import KV_BYTES, WEIGHT_BYTES
from autotune.models.facts import gpu_by_driver_name
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.records.spec import Args, FixedLength, Length, LogNormalLength, StudySpec

KV_FRACTION = 0.95
MOST_REQUESTS, MOST_TOKENS = 4096, 32_768
LEAST_REQUESTS, LEAST_TOKENS = 64, 2048
REQUEST_STEPS = ((256, 32), (1024, 128), (math.inf, 256))
TOKEN_STEPS = ((4096, 256), (8192, 512), (math.inf, 1024))
"""(below, step): what is below is rounded up to a multiple of the step."""


def suggested(spec: StudySpec, gpus: Sequence[str]) -> Iterator[Args]:
    """Yield the closed form's arguments, where model, GPU and lengths are known."""
    shape, gpu = shape_of(spec.model), gpu_of_study(spec)
    workload = spec.objective.workload
    if shape is None or gpu is None or workload.input_tokens is None or workload.output_tokens is None:
        return
    tp = spec.engine.args.get("tensor_parallel_size", 1)
    limits = batch_limits(
        shape,
        gpu,
        gpus=min(int(tp), max(1, len(gpus))),
        kv_dtype=str(_nested(spec.engine.args, "kv_cache_config", "dtype") or "auto"),
        input_tokens=mean_tokens(workload.input_tokens),
        output_tokens=mean_tokens(workload.output_tokens),
    )
    if limits is not None:
        yield {"max_batch_size": limits[0], "max_num_tokens": limits[1], "enable_chunked_prefill": True}


def batch_limits(
    shape: ModelShape, gpu: GpuSpec, *, gpus: int, kv_dtype: str, input_tokens: float, output_tokens: float
) -> tuple[int, int] | None:
    """Return max_batch_size and max_num_tokens; None where the model does not fit the GPUs."""
    memory = gpus * gpu.memory_bytes - _weights(shape)
    token_bytes = 2 * shape.layers * shape.kv_heads * shape.head_dim * KV_BYTES.get(kv_dtype, shape.dtype_bytes)
    requests = memory * KV_FRACTION / (token_bytes * (input_tokens + output_tokens))
    if requests < 1:
        return None
    batch = min(requests, MOST_REQUESTS)
    tokens = min(batch * (1 + input_tokens / output_tokens), MOST_TOKENS)
    return max(LEAST_REQUESTS, _rounded(batch, REQUEST_STEPS)), max(LEAST_TOKENS, _rounded(tokens, TOKEN_STEPS))


def _rounded(value: float, steps: Sequence[tuple[float, int]]) -> int:
    step = next(step for below, step in steps if value < below)
    return step * math.ceil(value / step)


def _weights(shape: ModelShape) -> float:
    each = shape.dtype_bytes if shape.weight_format == "bf16" else WEIGHT_BYTES[shape.weight_format]
    return shape.parameters * each


def mean_tokens(length: Length) -> float:
    """Return the mean of a length, a lognormal's before it is cut but never beyond its bounds."""
    if isinstance(length, LogNormalLength):
        return min(max(length.median * math.exp(length.sigma**2 / 2), length.low), length.high)
    return length.tokens if isinstance(length, FixedLength) else (length.low + length.high) / 2


def gpu_of_study(spec: StudySpec) -> GpuSpec | None:
    """Return the kind of GPU that all of a study's are; None for kinds that the table lacks, and a mixture."""
    if spec.engine.simulate is not None:
        return gpu_of(spec.engine.simulate.gpu, "tensorrt_llm")
    found = [gpu_by_driver_name(gpu.name, gpu.memory_bytes) for gpu in visible_gpus(spec.hardware.gpus)]
    return found[0] if found and all(gpu == found[0] for gpu in found) else None


def _nested(args: Args, *path: str) -> object:
    dotted = args.get(".".join(path))
    inner = args.get(path[0])
    return dotted if dotted is not None else inner.get(path[1]) if isinstance(inner, dict) else None
