"""What a TensorRT-LLM says about itself in its log: phases, resolved settings, warnings.

Python's lines read `[12/20/2025-04:21:10] [TRT-LLM] [W] text`, those of the C++ runtime `[TensorRT-LLM][WARNING] text`.
The KV cache is made twice, once to estimate its size: what is said last counts.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from autotune.engines.edges import GIB, Figure, figures, last
from autotune.engines.lines import split_head as other_head
from autotune.engines.readiness import CRASHED_PHASE

_ESTIMATED = "Estimated max memory in KV cache"
CRASHED = "Executor loop crashed on this rank"
"""After it the server lives on and answers 503 for ever."""

PHASES = (
    ("to spawn MPI processes", "starting ranks"),
    ("for model weights", "loading weights"),
    ("Loading safetensors weights", "loading weights"),
    ("Model init total", "preparing memory"),
    ("Autotuning process starts", "tuning kernels"),
    ("Autotuning process ends", "preparing memory"),
    ("Creating CUDA graph instances", "capturing CUDA graphs"),
    (_ESTIMATED, "allocating the KV cache"),
    ("Started server process", "starting the API server"),
    (CRASHED, CRASHED_PHASE),
)
"""Text in the log, and the phase of start-up that it marks (1.1 to 1.4rc)."""

MAX_WARNINGS = 40

_HEAD = re.compile(
    r"(?:\[\d\d/\d\d/\d{4}-[\d:]+\] ?)?\[TRT-LLM\] (?:\[RANK \d+\] ?)?\[(?P<letter>[VDIWEF])\] ?"
    r"|\[TensorRT-LLM\]\[(?P<word>VERBOSE|DEBUG|INFO|WARNING|ERROR|FATAL)\] ?(?:\[\d+\] ?)?"
)
_LEVELS = {"V": "DEBUG", "D": "DEBUG", "I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL", "VERBOSE": "DEBUG"}

ADJUSTED = re.compile(r"Adjusted max_seq_len to (\d+)")
_SHAPE = re.compile(r"max_seq_len=(\d+), max_num_requests=\d+, max_num_tokens=(\d+), max_batch_size=(\d+)")

_EDGES: Mapping[str, Figure] = {
    "kv_cache_tokens": (re.compile(r"for max tokens in paged KV cache \((\d+)\)"), 1, last),
    "kv_available_bytes": (re.compile(r"Estimated max memory in KV cache ?: ?([\d.]+) GiB"), GIB, last),
    "weights_bytes": (re.compile(r"Use ([\d.]+) GB for model weights"), GIB, max),
    "total_bytes": (re.compile(r"device total memory ([\d.]+) GiB"), GIB, last),
}
_SETTINGS: Mapping[str, tuple[re.Pattern[str], Callable[[str], Any]]] = {
    "kv_cache_config.tokens_per_block": (re.compile(r"Number of tokens per block: (\d+)"), int),
    "kv_cache_config.free_gpu_memory_fraction": (re.compile(r"fraction is set ([\d.]+\d)"), float),
    "kv_cache_tokens": (re.compile(r"for max tokens in paged KV cache \((\d+)\)"), int),
}


def split_head(line: str) -> tuple[str, str, str]:
    """(heads of process and rank, level, text with its indentation); "" for what the line doesn't have."""
    writer, level, text = other_head(line)
    match = _HEAD.match(text)
    if match is None:
        return writer, level, text
    told = match["letter"] or match["word"]
    return writer + "[TRT-LLM]", _LEVELS.get(told, told), text[match.end() :]


def edges(log_text: str) -> dict[str, float]:
    """Figures that the log names, by name (bytes, tokens); what it doesn't tell is absent."""
    found = figures(_EDGES, log_text)
    if adjusted := ADJUSTED.findall(_final(log_text)):
        found["max_model_len_that_fits"] = float(adjusted[-1])
    return found


def _final(log_text: str) -> str:
    """What follows the estimate of the KV cache's size: before it, lengths are those of a small cache made to try."""
    return log_text[max(0, log_text.rfind(_ESTIMATED)) :]


def resolved_settings(log_text: str) -> dict[str, Any]:
    """Settings as TensorRT-LLM resolved them, by dotted names; what it doesn't tell is absent.

    `kv_cache_tokens` and `longest_sequence` are no parameters but what came of them: the latter is `max_seq_len`, plus
    what the overlap scheduler and speculation need.
    """
    found: dict[str, Any] = {}
    for name, (pattern, read) in _SETTINGS.items():
        if texts := pattern.findall(log_text):
            found[name] = read(texts[-1])
    if shapes := _SHAPE.findall(log_text):
        names = ("longest_sequence", "max_num_tokens", "max_batch_size")
        found |= zip(names, map(int, shapes[-1]), strict=True)
    return found


def longest_sequence(log_text: str) -> int | None:
    """Tokens of prompt and answer that the engine takes in the end; None where it doesn't say."""
    final = _final(log_text)
    told = [*ADJUSTED.findall(final)[-1:], *(shape[0] for shape in _SHAPE.findall(final)[-1:])]
    return min(map(int, told), default=None)


def log_warnings(log_text: str) -> tuple[str, ...]:
    """Distinct WARNING messages in the order of their first appearance, at most MAX_WARNINGS."""
    heads = (split_head(line) for line in log_text.splitlines())
    texts = (text.strip() for _, level, text in heads if level.startswith("WARN"))
    return tuple(dict.fromkeys(text for text in texts if text))[:MAX_WARNINGS]
