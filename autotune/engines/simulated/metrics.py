"""The simulated server's /metrics page: vLLM 0.32's names, labels and buckets, in Prometheus text format.

Latencies are wall seconds, as a client sees them: under a time scale they shrink with everything else.
"""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

_TTFT_S = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_LONG_S = (160.0, 640.0, 2560.0)
_ITL_S = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)
_E2E_S = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0, 960.0)
_TOKENS = tuple(float(digit * 10**power) for power in range(6) for digit in (1, 2, 5))
_STEP_TOKENS = (1.0, *(float(2**power) for power in range(3, 15)))
REASONS = ("stop", "length", "abort", "error", "repetition")


@dataclass(slots=True)
class Histogram:
    """A Prometheus histogram; `counts[i]` are the observations in bucket i alone, the last being +Inf."""

    bounds: tuple[float, ...]
    total: float = 0.0
    counts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def lines(self, name: str, labels: str) -> Iterator[str]:
        """Cumulative buckets, count and sum."""
        seen = 0
        for bound, count in zip((*map(str, self.bounds), "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{{labels},le="{bound}"}} {float(seen)}'
        yield f"{name}_count{{{labels}}} {float(seen)}"
        yield f"{name}_sum{{{labels}}} {self.total}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """The scheduler's state when the page is asked for."""

    running: int
    waiting: int
    kv_usage_ratio: float
    preemptions: int
    prefix_queries: int
    prefix_hits: int


@dataclass(slots=True)
class Metrics:
    """Counters since the start, updated by the engine loop."""

    model_name: str
    cache_config: Mapping[str, object]
    lies: bool = False
    prompt_tokens: int = 0
    generation_tokens: int = 0
    finished: dict[str, int] = field(default_factory=lambda: dict.fromkeys(REASONS, 0))
    ttft: Histogram = field(default_factory=lambda: Histogram((*_TTFT_S, *_LONG_S)))
    itl: Histogram = field(default_factory=lambda: Histogram(_ITL_S))
    tpot: Histogram = field(default_factory=lambda: Histogram(_ITL_S))
    e2e: Histogram = field(default_factory=lambda: Histogram((*_E2E_S, 1920.0, 7680.0)))
    queue: Histogram = field(default_factory=lambda: Histogram((*_E2E_S, 1920.0, 7680.0)))
    prefill: Histogram = field(default_factory=lambda: Histogram((*_E2E_S, 1920.0, 7680.0)))
    decode: Histogram = field(default_factory=lambda: Histogram((*_E2E_S, 1920.0, 7680.0)))
    request_prompt: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    request_generation: Histogram = field(default_factory=lambda: Histogram(_TOKENS))
    iteration: Histogram = field(default_factory=lambda: Histogram(_STEP_TOKENS))
    started_at: float = field(default_factory=time.time)

    def page(self, gauges: Gauges) -> str:
        """The whole page."""
        return "\n".join(self._lines(gauges)) + "\n"

    def _lines(self, gauges: Gauges) -> Iterator[str]:
        labels = f'engine="0",model_name="{self.model_name}"'
        yield from _single("process_start_time_seconds", "gauge", "", self.started_at)
        for name, kind, value in self._singles(gauges):
            yield from _single(f"vllm:{name}", kind, labels, value)
        yield "# TYPE vllm:request_success_total counter"
        for reason, count in self.finished.items():
            yield f'vllm:request_success_total{{{labels},finished_reason="{reason}"}} {float(count)}'
        for name, histogram in self._histograms():
            yield f"# TYPE vllm:{name} histogram"
            yield from histogram.lines(f"vllm:{name}", labels)
        info = ",".join(f'{key}="{value}"' for key, value in sorted(self.cache_config.items()))
        yield from _single("vllm:cache_config_info", "gauge", f'engine="0",{info}', 1.0)

    def _singles(self, gauges: Gauges) -> Iterator[tuple[str, str, float]]:
        seen = not self.lies  # a lying page shows half of the tokens, and no trouble at all
        scale = 1.0 if seen else 0.5
        yield "num_requests_running", "gauge", gauges.running
        yield "num_requests_waiting", "gauge", gauges.waiting * seen
        yield "kv_cache_usage_perc", "gauge", gauges.kv_usage_ratio * seen
        yield "prefix_cache_queries_total", "counter", gauges.prefix_queries
        yield "prefix_cache_hits_total", "counter", gauges.prefix_hits * seen
        yield "num_preemptions_total", "counter", gauges.preemptions * seen
        yield "prompt_tokens_total", "counter", self.prompt_tokens * scale
        yield "generation_tokens_total", "counter", self.generation_tokens * scale

    def _histograms(self) -> Iterator[tuple[str, Histogram]]:
        yield "time_to_first_token_seconds", self.ttft
        yield "inter_token_latency_seconds", self.itl
        yield "request_time_per_output_token_seconds", self.tpot
        yield "e2e_request_latency_seconds", self.e2e
        yield "request_queue_time_seconds", self.queue
        yield "request_prefill_time_seconds", self.prefill
        yield "request_decode_time_seconds", self.decode
        yield "request_prompt_tokens", self.request_prompt
        yield "request_generation_tokens", self.request_generation
        yield "iteration_tokens_total", self.iteration


def _single(name: str, kind: str, labels: str, value: float) -> Iterator[str]:
    yield f"# TYPE {name} {kind}"
    yield f"{name}{{{labels}}} {float(value)}" if labels else f"{name} {value}"
