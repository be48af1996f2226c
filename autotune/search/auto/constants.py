"""The simulator's constants that a machine may have otherwise: one logarithmic factor each, and how far it may go.

A factor multiplies times: 0.3 of `compute` makes every matrix product take e^0.3 times as long.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import SchedulerConfig
from autotune.models.shapes import GpuSpec
from autotune.models.steptime import HostCosts

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Constant:
    """`deviation`: of the factor's logarithm, before anything was measured. `matters`: whether a configuration's times
    depend on it at all."""

    name: str
    deviation: float
    matters: Callable[[SchedulerConfig], bool] = lambda _: True


def _fp8(config: SchedulerConfig) -> bool:
    return config.weights == "fp8"


CONSTANTS = (
    Constant(name="compute", deviation=0.35),
    Constant(name="bandwidth", deviation=0.3),
    Constant(name="attention_prefill", deviation=0.4),
    Constant(name="attention_decode", deviation=0.35),
    Constant(name="layer_floor", deviation=0.5),
    Constant(name="host", deviation=0.5),
    Constant(name="api", deviation=0.7),
    Constant(name="fp8_compute", deviation=0.25, matters=_fp8),
    Constant(name="fp8_bandwidth", deviation=0.25, matters=_fp8),
    Constant(name="fp8_cache", deviation=0.25, matters=lambda c: c.kv_bytes < c.shape.dtype_bytes),
    Constant(name="all_reduce", deviation=0.5, matters=lambda c: c.tp > 1),
    Constant(name="launch", deviation=1.0, matters=lambda c: c.eager or c.max_num_seqs > c.max_graph),
)
"""Deviations: the fits of docs/simulator.md are within a tenth on the machines they were made on; drivers, clocks and
versions move kernels by a third, the server's own process by a half (nobody measured it on a GPU machine)."""

NAMES = tuple(constant.name for constant in CONSTANTS)
DEVIATIONS = np.array([constant.deviation for constant in CONSTANTS])


def slowed(gpu: GpuSpec, host: HostCosts, logs: Floats) -> tuple[GpuSpec, HostCosts]:
    """Return machine and host with their constants changed by `logs`, one a constant."""
    by = dict(zip(NAMES, np.exp(logs).tolist(), strict=True))
    compute, bandwidth = by["compute"], by["bandwidth"]
    decode, floor, reduce = by["attention_decode"], by["layer_floor"], by["all_reduce"]
    changed = replace(
        gpu,
        eff_flops_bf16=gpu.eff_flops_bf16 / compute,
        eff_flops_fp8=gpu.eff_flops_fp8 / (compute * by["fp8_compute"]),
        eff_bandwidth=gpu.eff_bandwidth / bandwidth,
        eff_bandwidth_fp8=gpu.eff_bandwidth_fp8 / (bandwidth * by["fp8_bandwidth"]),
        eff_attn_prefill=gpu.eff_attn_prefill / by["attention_prefill"],
        eff_attn_decode=gpu.eff_attn_decode / decode,
        eff_attn_decode_fp8=gpu.eff_attn_decode_fp8 / (decode * by["fp8_cache"]),
        layer_floor_us=gpu.layer_floor_us * floor,
        layer_floor_fp8_us=gpu.layer_floor_fp8_us * floor,
        allreduce_latency_us=gpu.allreduce_latency_us * reduce,
        eff_allreduce={gpus: share / reduce for gpus, share in gpu.eff_allreduce.items()},
    )
    hosted = HostCosts(
        step_s=host.step_s * by["host"],
        per_seq_s=host.per_seq_s * by["host"],
        launch_per_layer_s=host.launch_per_layer_s * by["launch"],
        api_latency_s=host.api_latency_s * by["api"],
        api_request_s=host.api_request_s * by["api"],
        api_prompt_token_s=host.api_prompt_token_s * by["api"],
        api_token_s=host.api_token_s * by["api"],
        api_chunk_s=host.api_chunk_s * by["api"],
    )
    return changed, hosted
