"""Telemetry in figures: what the engine counted between the first and the last sample, and how the GPUs fared."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from statistics import fmean

from autotune.records import counters as names
from autotune.records.trial import GpuSample, LevelRecord, RequestRecord, ServerSample, Telemetry

NO_TELEMETRY = Telemetry()

COUNT_RATIO = 0.01
"""By so much two counts of the same thing may differ: a request or token at the edge of a sample, never a hundredth."""

HELD_DOWN = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "power_brake"})
"""Reasons for a low clock that are trouble. A power cap is the working point of a loaded H100, a clock setting the
owner's wish, and a boost kept in step (`sync_boost`) the machine's design: those are noted only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineFigures:
    """A level by the engine's own account; None where its page doesn't tell. Counts are differences over the level,
    warm-up and drain included; gauges are taken inside the window.

    Of the time to the first token, `api_mean_ms` passed in the server but neither in its queue nor in prefill, and
    `outside_mean_ms` between it and the client, counted from the sending.
    """

    requests: float | None = None
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    preemptions: float | None = None
    prefix_query_tokens: float | None = None
    prefix_hit_tokens: float | None = None
    acceptance_length: float | None = None
    acceptance_ratio: float | None = None
    running_mean: float | None = None
    running_max: float | None = None
    waiting_mean: float | None = None
    waiting_max: float | None = None
    kv_use_mean_ratio: float | None = None
    kv_use_max_ratio: float | None = None
    ttft_mean_ms: float | None = None
    tpot_mean_ms: float | None = None
    queue_mean_ms: float | None = None
    prefill_mean_ms: float | None = None
    decode_mean_ms: float | None = None
    api_mean_ms: float | None = None
    outside_mean_ms: float | None = None
    step_mean_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuFigures:
    """The GPUs over a level: means over them, sums of memory, power and energy; None where NVML doesn't tell."""

    memory_max_bytes: float | None = None
    engine_memory_bytes: float | None = None
    others_max_bytes: float | None = None
    others_change_bytes: float | None = None
    utilisation_mean_ratio: float | None = None
    sm_clock_mean_mhz: float | None = None
    temperature_max_c: float | None = None
    power_mean_w: float | None = None
    energy_j: float | None = None
    throttled_ratio: float | None = None


def figures(level: LevelRecord) -> tuple[EngineFigures, GpuFigures]:
    """Return what the level's telemetry says; figures of None where it has none."""
    telemetry = level.telemetry or NO_TELEMETRY
    engine = _engine(telemetry.server, level.window_s)
    outside_ms = _outside_ms(level, telemetry.server, engine.ttft_mean_ms)
    return replace(engine, outside_mean_ms=outside_ms), _gpus(telemetry.gpus, level.window_s)


def as_counters(engine: EngineFigures, gpus: GpuFigures, output_tokens: float) -> dict[str, float]:
    """Return the figures that are there by name, `server_` or `gpu_` before it, and energy by output token."""
    found = {
        f"{prefix}_{field.name}": float(value)
        for prefix, record in (("server", engine), ("gpu", gpus))
        for field in fields(record)
        if (value := getattr(record, field.name)) is not None
    }
    if gpus.energy_j is not None and output_tokens:
        found["gpu_energy_per_output_token_j"] = gpus.energy_j / output_tokens
    return found


def delta(samples: Sequence[ServerSample], wanted: names.Names, suffix: str = "") -> float | None:
    """Return by how much a counter grew from the first sample to the last; one that appears meanwhile began at 0."""
    if len(samples) < 2:
        return None
    before, after = (names.first(samples[end].values, wanted, suffix) for end in (0, -1))
    return None if after is None else after - (before or 0.0)


# --- the engine -------------------------------------------------------------------------------------------------------


def _engine(samples: Sequence[ServerSample], window_s: tuple[float, float]) -> EngineFigures:
    inside = [sample for sample in samples if window_s[0] <= sample.at_s < window_s[1]]
    running, waiting, kv_use = (
        [value for sample in inside if (value := names.first(sample.values, wanted)) is not None]
        for wanted in (names.RUNNING, names.WAITING, names.KV_USE_RATIO)
    )
    drafts, drafted, accepted = (delta(samples, wanted) for wanted in (names.DRAFTS, names.DRAFTED, names.ACCEPTED))
    return EngineFigures(
        requests=delta(samples, names.FINISHED),
        prompt_tokens=delta(samples, names.PROMPT_TOKENS),
        output_tokens=delta(samples, names.OUTPUT_TOKENS),
        preemptions=delta(samples, names.PREEMPTIONS),
        prefix_query_tokens=delta(samples, names.PREFIX_QUERIES),
        prefix_hit_tokens=delta(samples, names.PREFIX_HITS),
        acceptance_length=1 + accepted / drafts if drafts and accepted is not None else None,
        acceptance_ratio=accepted / drafted if drafted and accepted is not None else None,
        running_mean=_mean(running),
        running_max=max(running, default=None),
        waiting_mean=_mean(waiting),
        waiting_max=max(waiting, default=None),
        kv_use_mean_ratio=_mean(kv_use),
        kv_use_max_ratio=max(kv_use, default=None),
        ttft_mean_ms=_mean_of(samples, names.TTFT_S, 1e3),
        tpot_mean_ms=_mean_of(samples, names.TPOT_S, 1e3),
        queue_mean_ms=_mean_of(samples, names.QUEUE_S, 1e3),
        prefill_mean_ms=_mean_of(samples, names.PREFILL_S, 1e3),
        decode_mean_ms=_mean_of(samples, names.DECODE_S, 1e3),
        api_mean_ms=_api_ms(samples),
        step_mean_tokens=_mean_of(samples, names.STEP_TOKENS),
    )


def _mean_of(samples: Sequence[ServerSample], histogram: names.Names, scale: float = 1.0) -> float | None:
    """The mean of what a histogram took in over the level."""
    total, count = (delta(samples, histogram, suffix) for suffix in ("_sum", "_count"))
    return scale * total / count if count and count > 0 and total is not None else None


def _api_ms(samples: Sequence[ServerSample]) -> float | None:
    """None where many requests never ended: queue and prefill are only told of those that did."""
    counts = [delta(samples, histogram, "_count") for histogram in (names.TTFT_S, names.QUEUE_S)]
    means = [_mean_of(samples, histogram, 1e3) for histogram in (names.TTFT_S, names.QUEUE_S, names.PREFILL_S)]
    if not agree(*counts) or None in means:
        return None
    ttft_ms, queue_ms, prefill_ms = (mean or 0.0 for mean in means)
    return max(0.0, ttft_ms - queue_ms - prefill_ms)


def _outside_ms(level: LevelRecord, samples: Sequence[ServerSample], server_ms: float | None) -> float | None:
    ours_ms = sent_ttft_ms(level.requests)
    if server_ms is None or not ours_ms or not agree(delta(samples, names.TTFT_S, "_count"), len(ours_ms)):
        return None
    return max(0.0, fmean(ours_ms) - server_ms)


def sent_ttft_ms(requests: Iterable[RequestRecord]) -> list[float]:
    """Return the times from the sending to the first token, which is all that the server can know of."""
    return [(r.chunk_s[0] - r.sent_s) * 1e3 for r in requests if r.chunk_s]


def agree(a: float | None, b: float | None) -> bool:
    """Whether two counts of the same thing are the same, but for those at the edge of a sample."""
    return a is not None and b is not None and abs(a - b) <= COUNT_RATIO * max(a, b) + 1


# --- the GPUs ---------------------------------------------------------------------------------------------------------


def by_gpu(samples: Iterable[GpuSample]) -> Mapping[str, list[GpuSample]]:
    """Return the samples of each GPU, in order of time."""
    found: dict[str, list[GpuSample]] = {}
    for sample in samples:
        found.setdefault(sample.gpu, []).append(sample)
    return found


def _gpus(samples: Sequence[GpuSample], window_s: tuple[float, float]) -> GpuFigures:
    inside = [sample for sample in samples if window_s[0] <= sample.at_s < window_s[1]]
    each = by_gpu(samples).values()
    others = [[o for s in gpu if (o := s.others_bytes) is not None] for gpu in each]
    return GpuFigures(
        memory_max_bytes=_total(max(_known(gpu, lambda s: s.memory_used_bytes), default=None) for gpu in each),
        engine_memory_bytes=_total(max(_known(gpu, _engine_bytes), default=None) for gpu in each),
        others_max_bytes=max((max(sizes) for sizes in others if sizes), default=None),
        others_change_bytes=max((max(sizes) - min(sizes) for sizes in others if sizes), default=None),
        utilisation_mean_ratio=_mean(_known(inside, lambda s: s.utilisation_ratio)),
        sm_clock_mean_mhz=_mean(_known(inside, lambda s: s.sm_clock_mhz)),
        temperature_max_c=max(_known(inside, lambda s: s.temperature_c), default=None),
        power_mean_w=_total(_mean(_known(gpu, lambda s: s.power_w)) for gpu in by_gpu(inside).values()),
        energy_j=_total(_energy_j(gpu) for gpu in each),
        throttled_ratio=_mean([float(bool(HELD_DOWN & set(s.throttled))) for s in inside]),
    )


def _energy_j(samples: Sequence[GpuSample]) -> float | None:
    """From the first sample to the last: by the GPU's own counter, else the integral of its power."""
    counted = _known(samples, lambda s: s.energy_j)
    if len(counted) > 1:
        return counted[-1] - counted[0]
    powers = [(s.at_s, s.power_w) for s in samples if s.power_w is not None]
    if len(powers) < 2:
        return None
    return sum((b - a) * (p + q) / 2 for (a, p), (b, q) in pairwise(powers))


def _engine_bytes(sample: GpuSample) -> float | None:
    used = sample.memory_used_bytes
    return None if used is None else used - (sample.others_bytes or 0)


def _known(samples: Iterable[GpuSample], field: Callable[[GpuSample], float | None]) -> list[float]:
    return [value for sample in samples if (value := field(sample)) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


def _total(values: Iterable[float | None]) -> float | None:
    """The sum over GPUs; None when one of them is unknown, or there is none."""
    found = list(values)
    return None if not found or None in found else sum(value for value in found if value is not None)
