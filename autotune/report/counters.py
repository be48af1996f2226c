"""The audit's figures as a table reads them: a label with its unit, and each trial's figure over its levels."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

from autotune.records.trial import TrialRecord
from autotune.report.words import ABSENT, figure, plain

Reduce = Callable[[Sequence[float]], float]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


_GIB = 2**30

LABELS: Mapping[str, tuple[str, Reduce, float]] = {
    "server_preemptions": ("preemptions", sum, 1),
    "server_prefix_hit_tokens": ("prefix-cache hits, tokens", sum, 1),
    "server_prefix_query_tokens": ("of prompt tokens", sum, 1),
    "server_running_mean": ("running requests, mean", _mean, 1),
    "server_waiting_mean": ("waiting requests, mean", _mean, 1),
    "server_waiting_max": ("waiting requests, most", max, 1),
    "server_kv_use_max_ratio": ("KV cache use, most, %", max, 100),
    "server_queue_mean_ms": ("time in the queue, mean ms", _mean, 1),
    "server_prefill_mean_ms": ("time in prefill, mean ms", _mean, 1),
    "server_ttft_mean_ms": ("TTFT by the server, mean ms", _mean, 1),
    "server_acceptance_length": ("tokens a speculative step, mean", _mean, 1),
    "gpu_memory_max_bytes": ("GPU memory in use, GiB", max, 1 / _GIB),
    "gpu_others_max_bytes": ("of others, GiB", max, 1 / _GIB),
    "gpu_sm_clock_mean_mhz": ("GPU clock, mean MHz", _mean, 1),
    "gpu_temperature_max_c": ("GPU temperature, most °C", max, 1),
    "gpu_throttled_ratio": ("GPU clock held down, % of the window", _mean, 100),
    "gpu_power_mean_w": ("GPU power, mean W", _mean, 1),
    "gpu_energy_per_output_token_j": ("GPU energy, J an output token", _mean, 1),
}
"""Counters worth a row: label, how levels are put together, and the factor to the label's unit."""


def counter_rows(trials: Sequence[TrialRecord]) -> Iterator[tuple[str, list[str]]]:
    """Yield (label, a figure for each trial); rows that no trial has are left out."""
    for name, (label, reduce, factor) in LABELS.items():
        found = [[m.counters[name] for m in trial.measurements if name in m.counters] for trial in trials]
        if any(found):
            yield label, [figure(factor * reduce(values)) if values else ABSENT for values in found]


def notes(trials: Sequence[TrialRecord]) -> list[str]:
    """Return what the audit noted of these trials, each once."""
    texts = (f"trial {trial.number}: {plain(note)}" for trial in trials for m in trial.measurements for note in m.notes)
    return list(dict.fromkeys(texts))
