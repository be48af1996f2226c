"""How long a step takes: a roofline with fitted efficiencies, boiled down to the kernel's `Costs` and `Limits`.

Per GPU, with T new tokens, L layers, P weights a layer, eb/ef/ea/ed/er/el/mix the GPU's constants (`data/gpus.json`):

    gemm = max(a, b) + mix·min(a, b);  a = P·w/(TP·eb·BW);  b = 2·P·T/(TP·ef·F)
    attn = sum over prefills 4h·hd/TP · c(p + c/2)/(ea·F_bf16) + S_ctx·2kv·hd·k/min(TP,kv)/(ed·BW)
    elem = el·d·T/(eb·BW·sqrt(TP)) + floor;   all-reduce (TP>1) = 2(lat + 4(TP-1)/TP · T·d/(er·link))
    GPU  = L(gemm + attn + elem + all-reduce) + lm_head;   host = 1 ms + 9 us·n_seq
"""

from __future__ import annotations

from dataclasses import dataclass
from math import sqrt

from autotune.models.config import FP8_CAPABILITY, SchedulerConfig
from autotune.models.kernel import Costs, Limits, Work, gpu_time

HEAD_FLOPS_RATIO = 0.6  # of the bf16 peak that the logits' product reaches


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCosts:
    """Seconds of the CPU's work. The scheduler's two are vLLM V1's on a server CPU; the API server's are our estimate
    (one Python process, SSE and JSON), never measured on a GPU machine."""

    step_s: float = 1.0e-3
    per_seq_s: float = 9e-6
    launch_per_layer_s: float = 100e-6
    api_latency_s: float = 2e-3
    api_request_s: float = 0.5e-3
    api_prompt_token_s: float = 0.4e-6
    api_token_s: float = 5e-6
    api_chunk_s: float = 15e-6


HOST = HostCosts()


def costs_of(config: SchedulerConfig, host: HostCosts = HOST, speed: float = 1.0) -> Costs:
    """Boil `config` down to seconds per unit; `speed` > 1 makes the GPU faster (one launch differs from the next)."""
    m, g, tp = config.shape, config.gpu, config.tp
    layers = m.layers / speed
    fp8 = (
        config.weights == "fp8" and g.capability >= FP8_CAPABILITY
    )  # below, weights are widened and multiplied in bf16
    flops = g.fp8_flops * g.eff_flops_fp8 if fp8 else g.bf16_flops * g.eff_flops_bf16
    bandwidth = g.bandwidth * g.eff_bandwidth
    kv_bytes = 2 * m.kv_heads * m.head_dim * config.kv_bytes / min(tp, m.kv_heads)
    kv_efficiency = g.eff_attn_decode if config.kv_bytes >= 2 else g.eff_attn_decode_fp8
    latency, per_token = _allreduce(config)
    head = m.vocab * m.hidden / tp / speed
    return Costs(
        weights=layers
        * m.layer_parameters
        * config.weight_bytes
        / tp
        / (g.bandwidth * (g.eff_bandwidth_fp8 if fp8 else g.eff_bandwidth)),
        gemm_per_token=layers * 2 * m.layer_parameters / tp / flops,
        attn_per_pair=layers * 4 * m.heads * m.head_dim / tp / (g.bf16_flops * g.eff_attn_prefill),
        attn_per_kv=layers * kv_bytes / (g.bandwidth * kv_efficiency),
        per_token=layers * (g.elementwise_bytes * m.hidden / bandwidth / sqrt(tp) + per_token),
        floor=layers * ((g.layer_floor_fp8_us if fp8 else g.layer_floor_us) * 1e-6 + latency),
        overlap=g.overlap_ratio,
        head_weights=head * m.dtype_bytes / bandwidth,
        head_per_seq=2 * head / (g.bf16_flops * HEAD_FLOPS_RATIO),
        host=host.step_s,
        host_per_seq=host.per_seq_s,
        launch=m.layers * host.launch_per_layer_s,
        api_latency=host.api_latency_s,
        api_per_request=host.api_request_s,
        api_per_prompt_token=host.api_prompt_token_s,
        api_per_token=host.api_token_s + host.api_chunk_s / config.stream_interval,
    )


def _allreduce(config: SchedulerConfig) -> tuple[float, float]:
    """Seconds a layer that the two all-reduces take, whatever their size and per token."""
    g, tp = config.gpu, config.tp
    if tp == 1:
        return 0.0, 0.0
    efficiency = g.eff_allreduce.get(str(tp), min(g.eff_allreduce.values()))
    return 2 * g.allreduce_latency_us * 1e-6, 2 * 4 * (tp - 1) / tp * config.shape.hidden / (g.link * efficiency)


def communication_ratio(config: SchedulerConfig, seqs: int) -> float:
    """Share of the GPU's time in a step of `seqs` decodes that its all-reduces take; 0 on one GPU. Their contexts are
    left out, which would lower it."""
    latency_s, per_token_s = _allreduce(config)
    spent_s = config.shape.layers * (latency_s + per_token_s * seqs)
    work = Work(tokens=seqs, pairs=0.0, kv=0, seqs=seqs, decode_only=1)
    return spent_s / gpu_time(limits_of(config, blocks=0), costs_of(config), work)


def limits_of(config: SchedulerConfig, blocks: int) -> Limits:
    """The kernel's limits for `config` with `blocks` KV blocks."""
    return Limits(
        max_num_seqs=config.max_num_seqs,
        max_num_batched_tokens=config.max_num_batched_tokens,
        threshold=config.long_prefill_token_threshold,
        chunked=int(config.chunked_prefill),
        block_size=config.block_size,
        blocks=blocks,
        prefix_caching=int(config.prefix_caching),
        reserve_full_input=int(config.reserve_full_input),
        no_evict=int(config.no_evict),
        eager=int(config.eager),
        max_graph=config.max_graph,
        asynchronous=int(config.async_scheduling),
        ring=config.max_model_len + 2,
    )
