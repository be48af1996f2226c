"""Whether a load can settle an objective's SLOs at all, known before anything is launched."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.records.metrics import parse_metric
from autotune.records.spec import FixedLength, Length, LoadSpec, ObjectiveSpec, Slo, UniformLength
from autotune.slo.sequential import requests_needed_to_pass


def unsettled(objective: ObjectiveSpec) -> Iterator[str]:
    """Yield a sentence for each SLO that this load can't settle: even without a violation it stays unsure."""
    for slo in objective.slos:
        needed = requests_needed_to_pass(slo, objective.confidence, objective.load)
        sent = samples_expected(slo, objective)
        if sent is not None and needed > sent:
            yield (
                f"{slo.metric} needs {_count(needed)} {_samples(slo)} without a violation; this load gives about "
                f"{sent:.0f}: it can only ever be unsure. {_remedy(objective, needed / max(sent, 1.0))}"
            )


def samples_expected(slo: Slo, objective: ObjectiveSpec) -> float | None:
    """Return about how many samples a launch's levels judge an SLO by; None when the engine's speed decides.

    A closed loop sends as much as is answered, so only `max_requests` tells; gaps (ITL) need the output's length. A
    search for capacity runs as many levels as its verdict takes.
    """
    requests = _requests(objective.load)
    metric = parse_metric(slo.metric)
    if requests is None or metric is None or metric.base != "itl_ms":
        return requests
    outputs = objective.workload.output_tokens
    return None if outputs is None else requests * max(0.0, mean_tokens(outputs) - 1)


def _requests(load: LoadSpec) -> float | None:
    """Requests inside the windows of all levels; None where only the run, or a trace's file, tells."""
    if load.capacity is not None:
        return None
    offered = None if load.offered_rps is None else load.offered_rps * load.duration_s
    if load.max_requests is not None:
        warmup = (load.offered_rps or 0.0) * load.warmup_s
        offered = min(offered or math.inf, max(0.0, load.max_requests - warmup))
    return None if offered is None else offered * load.repeats


def mean_tokens(length: Length) -> float:
    """Return the mean of a length, a lognormal's before it is cut but never beyond its bounds."""
    match length:
        case FixedLength(tokens=tokens):
            return tokens
        case UniformLength(low=low, high=high):
            return (low + high) / 2
    return min(max(length.median * math.exp(length.sigma**2 / 2), length.low), length.high)


def _count(needed: float) -> str:
    return "endlessly many" if math.isinf(needed) else f"{needed:.0f}"


def _samples(slo: Slo) -> str:
    metric = parse_metric(slo.metric)
    return "gaps between tokens" if metric is not None and metric.base == "itl_ms" else "requests"


def _remedy(objective: ObjectiveSpec, factor: float) -> str:
    if math.isinf(factor):
        return "A limit of 0 can be failed, never proven: give a small one"
    duration_s = math.ceil(objective.load.duration_s * factor / 10) * 10
    if objective.load.max_requests is not None:
        return "Raise max_requests, or take a lower quantile"
    return f"Raise duration_s to {duration_s}, or take a lower quantile"
