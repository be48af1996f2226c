"""The names under which engines publish what telemetry and audit read; the first that a page has counts.

Seen on a page of vLLM 0.32; older releases' names stand behind, then those of `engines.tensorrt_llm.stats`.
"""

from __future__ import annotations

from collections.abc import Mapping

Names = tuple[str, ...]

RUNNING: Names = ("vllm:num_requests_running", "trtllm:running_requests")
WAITING: Names = ("vllm:num_requests_waiting", "trtllm:waiting_requests", "triton:waiting_requests")
KV_USE_RATIO: Names = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "trtllm:kv_cache_usage_ratio")

PROMPT_TOKENS: Names = ("vllm:prompt_tokens_total",)
OUTPUT_TOKENS: Names = ("vllm:generation_tokens_total",)
FINISHED: Names = ("vllm:request_success_total",)
"""Requests that ended, whatever the reason; also those that their client left."""
PREEMPTIONS: Names = ("vllm:num_preemptions_total", "trtllm:paused_requests_total")
PREFIX_QUERIES: Names = ("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
PREFIX_HITS: Names = ("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
DRAFTS: Names = ("vllm:spec_decode_num_drafts_total",)
DRAFTED: Names = ("vllm:spec_decode_num_draft_tokens_total",)
ACCEPTED: Names = ("vllm:spec_decode_num_accepted_tokens_total",)

# Histograms by their bare name: `_sum`, `_count` and the buckets hang on it.
TTFT_S: Names = ("vllm:time_to_first_token_seconds",)
TPOT_S: Names = ("vllm:request_time_per_output_token_seconds",)
QUEUE_S: Names = ("vllm:request_queue_time_seconds", "trtllm:queue_seconds", "triton:queue_seconds")
PREFILL_S: Names = ("vllm:request_prefill_time_seconds",)
DECODE_S: Names = ("vllm:request_decode_time_seconds",)
STEP_TOKENS: Names = ("vllm:iteration_tokens_total", "trtllm:iteration_tokens")


def first(values: Mapping[str, float], names: Names, suffix: str = "") -> float | None:
    """The value of the first of `names` (each with `suffix`) that is there; None when none is."""
    return next((values[name + suffix] for name in names if name + suffix in values), None)


def bucket(name: str, bound: str | float) -> str:
    """The name of a histogram's cumulative bucket, as a page spells it without its other labels."""
    return f'{name}_bucket{{le="{bound}"}}'
