"""Lines of a vLLM log that name an edge of what fits, as numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from autotune.engines.edges import GIB, Figure, figures

_EDGES: Mapping[str, Figure] = {
    "max_model_len": (re.compile(r"max seq len \(([\d,]+)\)"), 1, max),
    "max_model_len_that_fits": (re.compile(r"estimated maximum model length is ([\d,]+)"), 1, min),
    "kv_needed_bytes": (re.compile(r"\(?([\d.]+) GiB KV cache is needed"), GIB, max),
    "kv_available_bytes": (
        re.compile(r"(?:available KV cache memory \(|Available KV cache memory: )(-?[\d.]+) GiB"),
        GIB,
        min,
    ),
    "kv_cache_tokens": (
        re.compile(r"KV cache size: ([\d,]+) tokens|that can be stored in (?:the )?KV cache \(([\d,]+)\)"),
        1,
        min,
    ),
    "kv_cache_max_concurrency": (
        re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x"),
        1,
        min,
    ),
    "weights_bytes": (re.compile(r"(?:Model loading|Loading model weights) took ([\d.]+) Gi?B"), GIB, max),
    "graphs_bytes": (re.compile(r"Graph capturing finished in .*?, took (-?[\d.]+) Gi?B"), GIB, max),
    "free_bytes": (re.compile(r"Free memory on device \S+ \(([\d.]+)/[\d.]+ GiB\)"), GIB, min),
    "total_bytes": (re.compile(r"Free memory on device \S+ \([\d.]+/([\d.]+) GiB\)"), GIB, min),
    "wanted_bytes": (re.compile(r"on startup is less than desired.*?\([\d.]+, ([\d.]+) GiB\)"), GIB, max),
}


def edges(log_text: str) -> dict[str, float]:
    """Figures that the log names, by name (bytes, tokens, requests); what it doesn't tell is absent.

    `max_model_len_that_fits` is vLLM's estimate, which is wrong under pipeline parallelism (vllm#34076).
    """
    return figures(_EDGES, log_text)
