"""The workload moved by 30 %: an objective in, objectives with more or less load, longer or shorter requests out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.records.spec import (
    FixedLength,
    Length,
    LoadSpec,
    LogNormalLength,
    ObjectiveSpec,
    UniformLength,
    WorkloadSpec,
)

SHIFT = 0.3


def shifts_of(objective: ObjectiveSpec, load: LoadSpec) -> Iterator[tuple[str, ObjectiveSpec]]:
    """Yield (name, objective): load up and down, then lengths up and down, as far as the study's own can be scaled.

    A trace and lengths from a file stay as they were recorded.
    """
    for sign, factor in (("+", 1 + SHIFT), ("-", 1 - SHIFT)):
        moved = scaled_load(load, factor)
        if moved is not None:
            yield f"load {sign}{SHIFT:.0%}", replace(objective, load=moved)
    for sign, factor in (("+", 1 + SHIFT), ("-", 1 - SHIFT)):
        workload = scaled_lengths(objective.workload, factor)
        if workload is not None:
            yield f"lengths {sign}{SHIFT:.0%}", replace(objective, load=load, workload=workload)


def scaled_load(load: LoadSpec, factor: float) -> LoadSpec | None:
    """Return the load times a factor, one level of it; None for a trace and for a search of a capacity."""
    one = replace(load, repeats=1)
    if load.concurrency is not None:
        return replace(one, concurrency=max(1, round(load.concurrency * factor)))
    if load.ramp is not None:
        ramp = replace(load.ramp, from_rps=load.ramp.from_rps * factor, to_rps=load.ramp.to_rps * factor)
        return replace(one, ramp=ramp)
    for name in ("poisson_rps", "constant_rps"):
        if (rps := getattr(load, name)) is not None:
            return replace(one, **{name: rps * factor})
    for name in ("gamma", "bursts"):
        if (arrivals := getattr(load, name)) is not None:
            return replace(one, **{name: replace(arrivals, rps=arrivals.rps * factor)})
    return None


def scaled_lengths(workload: WorkloadSpec, factor: float) -> WorkloadSpec | None:
    """Return the workload with prompts and answers so many times as long; None where a file gives them.

    A prefix that all share stays as it is; prompts are never shorter than it.
    """
    if workload.input_tokens is None or workload.output_tokens is None or workload.dataset is not None:
        return None
    least = workload.prefix.tokens + 1 if workload.prefix and not workload.sessions else 1
    return replace(
        workload,
        input_tokens=_scaled(workload.input_tokens, factor, least),
        output_tokens=_scaled(workload.output_tokens, factor, 1),
    )


def _scaled(length: Length, factor: float, least: int) -> Length:
    if isinstance(length, FixedLength):
        return FixedLength(tokens=_whole(length.tokens, factor, least))
    low, high = _whole(length.low, factor, least), _whole(length.high, factor, least)
    if isinstance(length, UniformLength):
        return UniformLength(low=low, high=high)
    # A longest request that grew would not fit an engine that was given just that length.
    return LogNormalLength(median=length.median * factor, sigma=length.sigma, low=low, high=length.high)


def _whole(tokens: int, factor: float, least: int) -> int:
    return max(least, round(tokens * factor))
