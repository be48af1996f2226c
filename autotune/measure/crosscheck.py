"""What engine and GPUs say of a level against what the client saw: each contradiction is one line with the numbers.

A `doubt` makes the level untrusted, anything else is a note. docs/audit.md gives each check with its threshold.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from autotune.measure.counters import (
    COUNT_RATIO,
    HELD_DOWN,
    NO_TELEMETRY,
    EngineFigures,
    GpuFigures,
    agree,
    by_gpu,
    delta,
    sent_ttft_ms,
)
from autotune.records import counters as names
from autotune.records.trial import GpuSample, LevelRecord, RequestRecord, ServerSample

HITS_RATIO = 0.01
"""Share of the prompt tokens that may be found in a prefix cache beyond what the workload shares. Random prompts hit
nothing; a level that ran before hits nearly all, and moved throughput by up to 86 % (vllm#52884)."""

FEW_HITS_RATIO = 0.5
"""Below this share of the hits that the workload offers, the cache is off, or loses prefixes before they come back."""

TTFT_RATIO, TTFT_MS = 1.1, 5.0
"""The server's TTFT ends before ours does, so its mean can't be above ours; with room for a busy machine."""

TTFT_SHARE = 0.05
"""The same for the whole distribution: share of requests by which the server's may lie behind ours at any bound."""

OUTSIDE_RATIO, OUTSIDE_MS = 0.25, 20.0
"""From here on, the time to the first token that passes outside the engine is worth a word."""

THROTTLED_RATIO = 0.1
"""Share of the window in which a clock may be held down: a shorter dip moves no quantile that has an interval."""

POWER_CAP_RATIO = 0.5
"""A GPU at its power cap for longer is worth a word: its clocks, and so the figures, are those of this cap."""

CLOCK_RATIO, CLOCK_SAMPLES, BUSY_RATIO = 0.85, 6, 0.5
"""A busy GPU's clock may fall to this share from the window's first half to its second: power-capped clocks wander by
5-10 %. 27 to 64 degrees took a kernel from 1965 to 1813 MHz (tensara#226), with no reason given."""

TENANT_BYTES = 256 * 2**20
"""Memory of others that comes or goes: less than the context of any CUDA process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line about a level; a `doubt` makes it untrusted."""

    text: str
    doubt: bool = False


def _doubt(text: str) -> Finding:
    return Finding(text=text, doubt=True)


def findings(level: LevelRecord, engine: EngineFigures, gpus: GpuFigures) -> Iterator[Finding]:
    """Yield what doesn't fit and what is worth knowing; nothing where there is no telemetry but what it notes."""
    telemetry = level.telemetry or NO_TELEMETRY
    yield from (Finding(text=note) for note in telemetry.notes)
    yield from _cached(level.requests, engine)
    yield from _engine(level.requests, telemetry.server, engine)
    yield from _gpus(level, telemetry.gpus, gpus)


# --- the prefix cache -------------------------------------------------------------------------------------------------


def _cached(requests: Sequence[RequestRecord], engine: EngineFigures) -> Iterator[Finding]:
    """Hits beyond what the workload shares: these prompts, or their beginnings, were served before."""
    shared = [r.shared_tokens for r in requests]
    if not requests or None in shared:
        return
    expected = sum(tokens or 0 for tokens in shared)
    queries, hits = engine.prefix_query_tokens, engine.prefix_hit_tokens
    if not queries or hits is None:
        queries, hits = _by_usage(requests)
        if hits > HITS_RATIO * queries:
            yield _doubt(f"{_contaminated(hits, queries)} by the usage of its answers")
        return
    if hits - expected > HITS_RATIO * queries:
        yield _doubt(f"{_contaminated(hits - expected, queries)} by the engine's counters")
    elif hits < FEW_HITS_RATIO * expected and expected > HITS_RATIO * queries:
        yield Finding(
            text=f"the prefix cache gave {hits:.0f} of at most {expected} tokens that the workload shares: is it off?"
        )


def _by_usage(requests: Sequence[RequestRecord]) -> tuple[float, float]:
    """Prompt tokens, and those of them found in a cache beyond what is shared, as each answer counts them."""
    counted = [r for r in requests if r.cached_tokens is not None]
    extra = sum(max(0, (r.cached_tokens or 0) - (r.shared_tokens or 0)) for r in counted)
    return float(sum(r.prompt_tokens or 0 for r in counted)), float(extra)


def _contaminated(extra: float, queries: float) -> str:
    return f"repeated prompts: {extra:.0f} of {queries:.0f} prompt tokens were cached that the workload does not share,"


# --- the engine's counters --------------------------------------------------------------------------------------------


def _engine(
    requests: Sequence[RequestRecord], samples: Sequence[ServerSample], engine: EngineFigures
) -> Iterator[Finding]:
    counts = (engine.requests, engine.output_tokens, engine.prompt_tokens)
    if any(count is not None and count < 0 for count in counts):
        yield _doubt("the engine's counters went backwards: it was started anew during the level")
        return
    yield from _before(samples)
    if engine.preemptions:
        yield Finding(
            text=f"{engine.preemptions:.0f} preemptions among {len(requests)} requests: the KV cache was full"
        )
    if engine.requests is None:
        return
    answered = sum(r.error is None for r in requests)
    foreign = engine.requests - len(requests)
    if foreign > max(1.0, COUNT_RATIO * len(requests)):
        yield _doubt(f"others use the server: it ended {engine.requests:.0f} requests, this level sent {len(requests)}")
    elif engine.requests < (1 - COUNT_RATIO) * answered - 1:
        yield Finding(
            text=f"the engine's page counts {engine.requests:.0f} of {answered} answers: it shows a part of the server,"
            " so nothing on it was compared"
        )
    else:
        yield from _tokens(requests, engine)
        yield from _first_tokens(requests, samples, engine)


def _before(samples: Sequence[ServerSample]) -> Iterator[Finding]:
    if samples and samples[0].at_s <= 0:
        busy = sum(names.first(samples[0].values, wanted) or 0 for wanted in (names.RUNNING, names.WAITING))
        if busy:
            yield _doubt(f"{busy:.0f} requests were in the engine before the level sent its first")


def _tokens(requests: Sequence[RequestRecord], engine: EngineFigures) -> Iterator[Finding]:
    """Usage against the engine's own counters; an answer that was cut or failed stands for any part of it."""
    whole = [r for r in requests if r.error is None and r.output_tokens is not None and r.prompt_tokens is not None]
    rest = [r for r in requests if r.error is not None]
    if len(whole) + len(rest) < len(requests):
        return  # some answers have no usage, which is a doubt of its own
    for what, told, counted, most in (
        (
            "output",
            engine.output_tokens,
            sum(r.output_tokens or 0 for r in whole),
            [r.asked_output_tokens for r in rest],
        ),
        (
            "prompt",
            engine.prompt_tokens,
            sum(r.prompt_tokens or 0 for r in whole),
            [r.asked_prompt_tokens for r in rest],
        ),
    ):
        if told is None or None in most:
            continue
        high = counted + sum(tokens or 0 for tokens in most)
        if not (1 - COUNT_RATIO) * counted - 1 <= told <= (1 + COUNT_RATIO) * high + 1:
            yield _doubt(f"the server contradicts itself: {counted} {what} tokens by usage, {told:.0f} by its counters")


def _first_tokens(
    requests: Sequence[RequestRecord], samples: Sequence[ServerSample], engine: EngineFigures
) -> Iterator[Finding]:
    """Our TTFT, from the sending, contains the server's."""
    ours_ms = sent_ttft_ms(requests)
    count = delta(samples, names.TTFT_S, "_count")
    server_ms = engine.ttft_mean_ms
    if server_ms is None or not ours_ms or count is None or not agree(count, len(ours_ms)):
        return
    mean_ms = fmean(ours_ms)
    if server_ms > TTFT_RATIO * mean_ms + TTFT_MS:
        yield _doubt(f"the server tells a mean TTFT of {server_ms:.3g} ms, more than the {mean_ms:.3g} ms that we saw")
    elif (found := _behind(ours_ms, samples, count)) is not None:
        bound_ms, share = found
        yield _doubt(
            f"the server's TTFT histogram contradicts ours: within {bound_ms:.3g} ms it has {share:.0%} fewer requests"
        )
    elif mean_ms - server_ms > max(OUTSIDE_MS, OUTSIDE_RATIO * mean_ms):
        yield Finding(
            text=f"of the mean TTFT of {mean_ms:.3g} ms only {server_ms:.3g} ms passed in the server by its own account"
        )


def _behind(ours_ms: Sequence[float], samples: Sequence[ServerSample], count: float) -> tuple[float, float] | None:
    """The bound in ms at which the server's share of requests lies furthest behind ours, and by how much; None if it
    nowhere lies behind by more than TTFT_SHARE."""
    worst: tuple[float, float] | None = None
    for name in names.TTFT_S:
        head = name + '_bucket{le="'
        for key in samples[-1].values:
            bound_s = key.removeprefix(head).removesuffix('"}')
            if key.startswith(head) and bound_s != "+Inf":
                bound_ms = float(bound_s) * 1e3
                theirs = (delta(samples, (key,)) or 0.0) / count
                share = sum(ttft < bound_ms for ttft in ours_ms) / len(ours_ms) - theirs
                if share > (TTFT_SHARE if worst is None else worst[1]):
                    worst = (bound_ms, share)
    return worst


# --- the GPUs ---------------------------------------------------------------------------------------------------------


def _gpus(level: LevelRecord, samples: Sequence[GpuSample], figures: GpuFigures) -> Iterator[Finding]:
    begin, end = level.window_s
    inside = [sample for sample in samples if begin <= sample.at_s < end]
    if (figures.throttled_ratio or 0.0) > THROTTLED_RATIO:
        why = sorted({reason for sample in inside for reason in HELD_DOWN & set(sample.throttled)})
        yield _doubt(f"GPU clocks were held down in {figures.throttled_ratio:.0%} of the window: {', '.join(why)}")
    capped = _share(inside, "power_cap")
    if capped > POWER_CAP_RATIO:
        yield Finding(text=f"the GPUs were at their power cap in {capped:.0%} of the window")
    if _share(inside, "clock_setting") > POWER_CAP_RATIO:
        yield Finding(text="the GPU clocks are pinned below their best by a setting")
    for gpu, mine in by_gpu(inside).items():
        yield from _sagging(gpu, mine)
    change, most = figures.others_change_bytes or 0.0, figures.others_max_bytes or 0.0
    if change > TENANT_BYTES:
        yield _doubt(f"another program came to the GPU or left it during the level: {change / 2**30:.1f} GiB of memory")
    elif most > TENANT_BYTES:
        yield Finding(text=f"other programs held {most / 2**30:.1f} GiB of a GPU all the time")


def _share(samples: Sequence[GpuSample], reason: str) -> float:
    return fmean(reason in sample.throttled for sample in samples) if samples else 0.0


def _sagging(gpu: str, samples: Sequence[GpuSample]) -> Iterator[Finding]:
    """A clock that falls while the GPU is busy, whatever the driver says why."""
    busy = [s for s in samples if s.sm_clock_mhz is not None and (s.utilisation_ratio or 0.0) >= BUSY_RATIO]
    clocks = [sample.sm_clock_mhz or 0.0 for sample in busy]
    if len(clocks) < CLOCK_SAMPLES:
        return
    early, late = fmean(clocks[: len(clocks) // 2]), fmean(clocks[len(clocks) // 2 :])
    if late < CLOCK_RATIO * early:
        yield _doubt(f"the clock of GPU {gpu} fell from {early:.0f} to {late:.0f} MHz within the window")
