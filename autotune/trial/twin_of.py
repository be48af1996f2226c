"""What can be simulated of a launched engine: its resolved settings, its KV cache, the model's shape, the machine.

What it doesn't tell is assumed. That may be wrong: the twin is fitted to levels before it is asked, and its guard
refuses one that can't be made to fit.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from autotune.engines.base import Server
from autotune.engines.hardware import visible_gpus
from autotune.models.config import MODELLED, RefusedConfig, SchedulerConfig, from_vllm_args
from autotune.models.facts import gpu_by_driver_name, model_folder
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.models.steptime import HOST, HostCosts
from autotune.models.twin import Twin
from autotune.records.spec import SimulateSpec, StudySpec

ANY_MODEL = "meta-llama/Llama-3.1-8B"  # whose shape stands in for an unknown one
AMPLE_TOKENS = 1_000_000  # of KV cache, where the engine doesn't say

CPU_HOST = HostCosts(
    step_s=5e-3,
    per_seq_s=0.3e-3,
    launch_per_layer_s=0.0,
    api_latency_s=0.0,
    api_request_s=2e-3,
    api_prompt_token_s=0.0,
    api_token_s=0.2e-3,
    api_chunk_s=0.0,
)
"""A server on a few CPU cores: where fits of a real vLLM on a CPU begin (benchmarks/simulator/vllm_cpu_fit.py)."""

CPU = GpuSpec(
    name="cpu",
    bf16_flops=100e9,
    fp8_flops=100e9,
    bandwidth=10e9,
    memory_bytes=8 * 2**30,
    link=1.0,
    capability=0,
    eff_flops_bf16=1.0,
    eff_flops_fp8=1.0,
    eff_bandwidth=1.0,
    eff_bandwidth_fp8=1.0,
    eff_attn_prefill=1.0,
    eff_attn_decode=1.0,
    eff_attn_decode_fp8=1.0,
    layer_floor_us=0.0,
    layer_floor_fp8_us=0.0,
    allreduce_latency_us=0.0,
    eff_allreduce={},
    elementwise_bytes=0.0,
    overlap_ratio=0.0,
)


def twin_of(spec: StudySpec, server: Server) -> Twin | None:
    """Return the twin of a launched engine, before it has seen a level; None when its settings are none that can be
    simulated."""
    resolved = server.resolved()
    gpu = gpu_of_machine(spec)
    config = _config(resolved, _shape(spec) or _any_shape(), gpu or CPU, server.max_model_len)
    if config is None:
        return None
    return Twin(config=config, blocks=_blocks(resolved, config.block_size), host=CPU_HOST if gpu is None else HOST)


def _config(
    resolved: Mapping[str, Any], shape: ModelShape, gpu: GpuSpec, max_model_len: int | None
) -> SchedulerConfig | None:
    args = {name: resolved[name] for name in MODELLED & set(resolved) if resolved[name] is not None}
    # What changes memory only is told by the KV cache itself; what scales times is fitted.
    for name in ("kv_cache_dtype", "quantization", "dtype", "compilation_config", "num_gpu_blocks_override"):
        args.pop(name, None)
    length = args.get("max_model_len") or max_model_len
    if isinstance(length, int):
        args["max_model_len"] = min(length, shape.max_position)
    try:
        return from_vllm_args(args, shape, gpu)
    except RefusedConfig:
        return None


def _blocks(resolved: Mapping[str, Any], block_size: int) -> int:
    tokens, blocks = resolved.get("kv_cache_tokens"), resolved.get("num_gpu_blocks")
    if isinstance(tokens, int):
        return tokens // block_size
    return blocks - 1 if isinstance(blocks, int) else AMPLE_TOKENS // block_size  # one is vLLM's null block


def _shape(spec: StudySpec) -> ModelShape | None:
    found = shape_of(spec.model)
    if found is not None:
        return found
    folder = model_folder(spec.model, {**os.environ, **spec.engine.env})
    return None if folder is None else shape_of(str(folder))


def _any_shape() -> ModelShape:
    shape = shape_of(ANY_MODEL)
    assert shape is not None  # noqa: S101 - shipped
    return shape


def gpu_of_machine(spec: StudySpec) -> GpuSpec | None:
    """Return the kind of GPU of the study's machine; None for a CPU, a kind that the table lacks, and a mixture."""
    if spec.simulated:
        return gpu_of((spec.engine.simulate or SimulateSpec()).gpu)
    found = [gpu_by_driver_name(gpu.name, gpu.memory_bytes) for gpu in visible_gpus(spec.hardware.gpus)]
    return found[0] if found and all(each == found[0] for each in found) else None
