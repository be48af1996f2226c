"""What a vLLM says about itself: resolved settings, warnings and phases from its log, figures from /metrics."""

# ruff: noqa: ANN401  a log says anything

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from autotune.engines.lines import QUIET, split_head
from autotune.engines.vllm.downgrades import downgrade_of
from autotune.engines.vllm.flags import SECRETS, TUNER_OWNED
from autotune.records.counters import TTFT_S, bucket

PHASES = (
    ("Starting to load model", "loading weights"),
    ("Loading weights took", "preparing memory"),
    ("Dynamo bytecode transform", "compiling"),
    ("Start compiling function", "compiling"),
    ("Compiling a graph", "compiling"),
    ("Warming up model for the compilation", "compiling"),
    ("Capturing CUDA graph", "capturing CUDA graphs"),
    ("Graph capturing finished", "starting the API server"),
    ("Starting vLLM server", "starting the API server"),
)
"""Text in the log, and the phase of start-up that it marks (vLLM 0.32)."""

LEFTOVERS = (r"distributed_init_method=file://(\S*/vllm_dist_[0-9a-f]{32})\b",)
"""Files that vLLM names in its log and leaves behind."""

MAX_WARNINGS = 40

BUCKETS = frozenset(TTFT_S)
"""The histograms whose buckets are kept."""

MAX_METRICS = 2_000  # of a page of 300 names; a server that makes up names fills no memory

_CONFIG = re.compile(r"Initializing a V1 LLM engine \(\S+\) with config: (.*)")
_ASKED = re.compile(r"non-default args: (\{.*\})")
_ENUM = re.compile(r"<\w+\.(\w+): [^<>]*>")
_SAYINGS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {  # what the configuration line leaves out
    "max_num_batched_tokens": (re.compile(r"max_num_batched_tokens=(\d+)"), int),
    "async_scheduling": (re.compile(r"Asynchronous scheduling is (enabled|disabled)"), lambda text: text == "enabled"),
    "attention_backend": (re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z0-9_]+) attention backend"), str),
    "kv_cache_tokens": (re.compile(r"KV cache size: ([\d,]+) tokens"), int),
    "kv_cache_max_concurrency": (re.compile(r"Maximum concurrency for [\d,]+ tokens per request: ([\d.,]+)x"), float),
}
_RENAMED = {"max_seq_len": "max_model_len", "chunked_prefill_enabled": "enable_chunked_prefill"}
_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.*)\}", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)", re.MULTILINE)
_BOUND = re.compile(r'\ble="([^"]*)"')
_CACHE_KEYS = {"block_size", "enable_prefix_caching", "gpu_memory_utilization", "kv_cache_memory_bytes"}
_CACHE_KEYS |= {"kv_cache_max_concurrency", "num_gpu_blocks", "sliding_window", "prefix_caching_hash_algo"}
_CACHE_KEYS |= {"kv_offloading_size", "num_gpu_blocks_override", "mamba_cache_dtype", "mamba_ssm_cache_dtype"}


def resolved_settings(log_text: str, metrics_text: str = "") -> dict[str, Any]:
    """Settings as vLLM resolved them, by the names of its parameters; what it doesn't tell is absent.

    `kv_cache_tokens`, `num_gpu_blocks` and `kv_cache_max_concurrency` are no parameters but what came of them.
    """
    return {
        **_as_parsed(log_text),
        **_from_config_line(log_text),
        **_from_sayings(log_text),
        **_from_cache_info(metrics_text),
    }


def _as_parsed(log_text: str) -> dict[str, Any]:
    """What vLLM's parser understood; the only place where some settings (`max_num_seqs`) show at all."""
    match = _ASKED.search(log_text)
    asked = _value(match.group(1)) if match else {}
    if not isinstance(asked, dict):
        return {}
    return {name: value for name, value in asked.items() if name not in TUNER_OWNED | SECRETS}


def _from_config_line(log_text: str) -> dict[str, Any]:
    match = _CONFIG.search(log_text)
    if match is None:
        return {}
    pairs = (part.partition("=") for part in _split(match.group(1)))
    found = {_RENAMED.get(name, name): _value(text) for name, equals, text in pairs if equals}
    return {name: value for name, value in found.items() if value is not None}


def _from_sayings(log_text: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (pattern, read) in _SAYINGS.items():
        matches = pattern.findall(log_text)
        if matches:
            found[name] = read(matches[-1].replace(",", ""))
    return found


def _from_cache_info(metrics_text: str) -> dict[str, Any]:
    match = _CACHE_INFO.search(metrics_text)
    if match is None:
        return {}
    labels = {name: _value(text) for name, text in _LABEL.findall(match.group(1))}
    found = {name: value for name, value in labels.items() if name in _CACHE_KEYS and value is not None}
    if labels.get("cache_dtype") is not None:
        found["kv_cache_dtype"] = labels["cache_dtype"]
    if labels.get("kv_cache_size_tokens") is not None:
        found["kv_cache_tokens"] = labels["kv_cache_size_tokens"]
    return found


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets and quotes."""
    depth, quote, start = 0, "", 0
    for index, letter in enumerate(text):
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "'\"":
            quote = letter
        elif letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif letter == "," and depth == 0:
            yield text[start:index].strip()
            start = index + 1
    yield text[start:].strip()


def _value(text: str) -> Any:
    """A Python literal where it is one, an enumeration's member by its name, else the text."""
    try:
        return ast.literal_eval(_ENUM.sub(r"'\1'", text))
    except (ValueError, SyntaxError):
        return text


def log_warnings(log_text: str) -> tuple[str, ...]:
    """Distinct WARNING messages, at most MAX_WARNINGS: known downgrades first (also those told as INFO), then the rest,
    each in the order of its first appearance."""
    known: dict[str, None] = {}
    others: dict[str, None] = {}
    for line in log_text.splitlines():
        _, level, text = split_head(line)
        if _ASKED.search(text) or _CONFIG.search(text):
            continue
        if level in QUIET and downgrade_of(text) is not None:
            known.setdefault(text.strip())
        elif level.startswith("WARN") and text.strip():
            others.setdefault(text.strip())
    return (*known, *others)[:MAX_WARNINGS]


def metric_sums(metrics_text: str) -> Mapping[str, float]:
    """Every sample of a /metrics page by name, summed over labels; creation times left out, and at most MAX_METRICS.

    Of buckets only those of BUCKETS are kept, by `records.counters.bucket`.
    """
    sums: dict[str, float] = {}
    for name, labels, text in _SAMPLE.findall(metrics_text):
        value = _number(text)
        kept = _metric_name(name, labels)
        if value is not None and kept is not None and (kept in sums or len(sums) < MAX_METRICS):
            sums[kept] = sums.get(kept, 0.0) + value
    return sums


def _metric_name(name: str, labels: str) -> str | None:
    """The name that a sample is kept by; None for one that is not."""
    if name.removesuffix("_bucket") in BUCKETS and name.endswith("_bucket"):
        bound = _BOUND.search(labels)
        return bucket(name.removesuffix("_bucket"), bound.group(1)) if bound else None
    return None if name.endswith(("_bucket", "_created", "_info")) else name


def _number(text: str) -> float | None:
    """None for what is no finite number: a summary without observations is NaN."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
