"""How requests arrive, in words."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from autotune.records.spec import CapacitySpec, LoadSpec, SessionSpec, TraceArrivals, WorkloadSpec
from autotune.report.words import plain


def load_text(load: LoadSpec) -> str:
    """Return how a level's requests arrive and how long it lasts."""
    times = "" if load.repeats == 1 else f", {load.repeats} a launch"
    most = "" if load.max_requests is None else f", at most {load.max_requests} requests"
    return f"{_arrivals(load)}; {load.duration_s:g} s after {load.warmup_s:g} s of warm-up{most}{times}"


def _arrivals(load: LoadSpec) -> str:
    if load.capacity is not None:
        return _capacity(load.capacity)
    if load.trace is not None:
        return _trace(load.trace)
    if load.concurrency is not None:
        return f"{load.concurrency} at a time"
    return _random(load) or f"evenly spaced, {load.constant_rps:g} requests/s"


def _random(load: LoadSpec) -> str | None:
    if load.poisson_rps is not None:
        return f"Poisson, {load.poisson_rps:g} requests/s"
    if load.gamma is not None:
        return f"gamma, {load.gamma.rps:g} requests/s, burstiness {load.gamma.burstiness:g}"
    if load.bursts is not None:
        each = f"{load.bursts.factor:g} times as fast for {load.bursts.burst_s:g} of every {load.bursts.every_s:g} s"
        return f"bursts, {load.bursts.rps:g} requests/s on average, {each}"
    if load.ramp is not None:
        return f"a ramp from {load.ramp.from_rps:g} to {load.ramp.to_rps:g} requests/s"
    return None


def _capacity(capacity: CapacitySpec) -> str:
    what = "rate" if capacity.of == "rps" else "concurrency"
    low = "" if capacity.low is None else f" from {capacity.low:g}"
    high = "" if capacity.high is None else f" up to {capacity.high:g}"
    return f"a search for the highest {what}{low}{high}, in at most {capacity.load_s:g} s of load"


def _trace(trace: TraceArrivals) -> str:
    changes = [
        f"{trace.speed:g} times as fast" if trace.speed != 1 else "",
        f"from {trace.start_s:g} s on" if trace.start_s else "",
        "repeated" if trace.repeat else "",
    ]
    return ", ".join(filter(None, [f"the trace {plain(Path(trace.file).name)}", *changes]))


def workload_text(workload: WorkloadSpec) -> str:
    """Return the shape of requests and what of it lengths don't say."""
    return ", ".join([plain(workload.shape), *_traits(workload)])


def _traits(workload: WorkloadSpec) -> Iterator[str]:
    for file in filter(None, (workload.dataset, workload.lengths)):
        yield plain(file)
    if workload.correlation:
        yield f"rank correlation of lengths {workload.correlation:g}"
    if workload.prefix is not None:
        groups = f", {workload.prefix.groups} groups" if workload.prefix.groups > 1 else ""
        yield f"a shared prefix of {workload.prefix.tokens} tokens{groups}"
    if workload.sessions is not None:
        yield _sessions(workload.sessions)
    if workload.text == "natural":
        yield "English text"


def _sessions(sessions: SessionSpec) -> str:
    low, high = sessions.turns.low, sessions.turns.high
    turns = f"{low}" if low == high else f"{low} to {high}"
    return f"conversations of {turns} turns, {sessions.think_s:g} s between them"
