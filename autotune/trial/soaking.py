"""A long level of one configuration comes in, what it showed goes out: SLOs through to its end, drift, memory growth.

After the long level, in the same launch, the winner may be measured under other load and lengths: how narrow the pick
is. Nothing of that counts for or against it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from autotune import slo
from autotune.engines.base import Server
from autotune.errors import InputError
from autotune.measure.estimates import student_t
from autotune.records.finals import Shifted, Soak, Trend
from autotune.records.spec import LoadSpec, StudySpec
from autotune.records.trial import OVERLOAD, LevelRecord, RequestRecord, Ruling, Telemetry, TrialRecord, Verdict
from autotune.trial.judging import measured, pooled
from autotune.trial.loading import OnPhase, load_server
from autotune.trial.shifts import shifts_of

Floats = NDArray[np.float64]

CAPACITY_SHARE = 0.9  # at the capacity itself an SLO holds by a hair, and half of all soaks would fail
SHIFTED_S = 60.0
SLICES = 10
DRIFT_RATIO = 0.05  # over the soak: less is of no matter
SURE = 0.99
RESIDENT = "process_resident_memory_bytes"  # as Prometheus clients name it
RATES = ("output_tok_per_s",)


def soak_load(asked: LoadSpec, duration_s: float, capacity: float | None) -> LoadSpec:
    """Return the load of a soak: the objective's for so long; of a capacity that was searched, CAPACITY_SHARE."""
    long = replace(asked, duration_s=duration_s, repeats=1, max_requests=None)
    if asked.capacity is None:
        return long
    found = CAPACITY_SHARE * (capacity or asked.capacity.low or 1.0)
    if asked.capacity.of == "rps":
        return replace(long, capacity=None, poisson_rps=found)
    return replace(long, capacity=None, concurrency=max(1, math.floor(found)))


def soak_of(
    record: TrialRecord, spec: StudySpec, level: LevelRecord, gpus: int, moved: tuple[Shifted, ...] = ()
) -> Soak:
    """Return what a long level showed; `record` is the trial as judged on it, `moved` what followed in its launch."""
    trends = dict(_trends(level)) if _steady(spec) else {}
    return Soak(
        duration_s=level.window_s[1] - level.window_s[0],
        load=_load_text(level),
        failed=_failed(record, spec, level, gpus),
        trends=trends,
        notes=tuple(_notes(trends)),
        shifted=moved,
    )


def shifted(spec: StudySpec, server: Server, gpus: int, on_phase: OnPhase) -> Iterator[Shifted]:
    """Yield how a ready server does under other load and lengths than those of its soak, `spec`'s."""
    load = replace(spec.objective.load, duration_s=min(SHIFTED_S, spec.objective.load.duration_s))
    for name, objective in shifts_of(spec.objective, load):
        on_phase(f"shifted: {name}")
        yield _shifted(name, replace(spec, objective=objective), server, gpus, on_phase)


def _shifted(name: str, spec: StudySpec, server: Server, gpus: int, on_phase: OnPhase) -> Shifted:
    try:
        loaded = load_server(spec, server, on_phase, gpus=gpus, early=False)
    except InputError as error:
        return Shifted(name=name, why=str(error).splitlines()[0])
    if loaded.failure is not None or not loaded.levels:
        return Shifted(name=name, why=loaded.failure.cause if loaded.failure else "nothing was measured")
    startup_s = server.startup_s or None
    found = [measured(level, spec.objective, gpus, startup_s, spec.price, usual=False) for level in loaded.levels]
    verdict = slo.judge(spec.objective, list(zip(loaded.levels, found, strict=True)))
    figure = pooled(spec.objective.metric, found)
    return Shifted(
        name=name,
        ruling=verdict.ruling.value,
        objective=None if figure is None else figure.value,
        missed=tuple(ruling.metric for ruling in verdict.slos if ruling.ruling is Ruling.FAIL),
    )


def _failed(record: TrialRecord, spec: StudySpec, level: LevelRecord, gpus: int) -> str | None:
    """Why the soak counts against the configuration: an SLO missed in all of it, or of a steady load in either half by
    itself."""
    if level.stopped is not None and level.stopped.startswith(OVERLOAD):
        return level.stopped
    begin, end = level.window_s
    halves = _halves(begin, (begin + end) / 2, end) if _steady(spec) else ()
    for name, verdict in (
        ("", record.verdict),
        *((text, _half(record, spec, level, window, gpus)) for text, window in halves),
    ):
        for ruling in verdict.slos if verdict else ():
            if ruling.ruling is Ruling.FAIL:
                return f"{ruling.metric} was missed{name}"
    return None


def _steady(spec: StudySpec) -> bool:
    """Whether one part of a level is like another; a ramp's halves and slices differ by the load's own doing."""
    return spec.objective.load.ramp is None


def _halves(begin: float, middle: float, end: float) -> Sequence[tuple[str, tuple[float, float]]]:
    return ((" in its first half", (begin, middle)), (" in its second half", (middle, end)))


def _half(record: TrialRecord, spec: StudySpec, level: LevelRecord, window: tuple[float, float], gpus: int) -> Verdict:
    part = replace(level, window_s=window, telemetry=None)
    figures = measured(part, spec.objective, gpus, record.startup_s, spec.price, usual=False)
    return slo.judge(spec.objective, [(part, figures)])


def _trends(level: LevelRecord) -> Iterator[tuple[str, Trend]]:
    edges = np.linspace(*level.window_s, SLICES + 1)
    for name, values in _sliced(level, edges).items():
        if not np.isnan(values).any() and values.mean() > 0:
            yield name, trend_of(values)


def _sliced(level: LevelRecord, edges: Floats) -> Mapping[str, Floats]:
    """Figures by slice of the window, NaN where a slice has nothing."""
    done = [r for r in level.requests if r.error is None and r.done_s is not None and r.chunk_s]
    started = [r.start_s for r in done]
    telemetry = level.telemetry or Telemetry()
    gpus = [(s.at_s, float(s.memory_used_bytes)) for s in telemetry.gpus if s.memory_used_bytes is not None]
    resident = [(s.at_s, s.values[RESIDENT]) for s in telemetry.server if RESIDENT in s.values]
    return {
        "output_tok_per_s": _tokens(done, edges) / np.diff(edges),
        "ttft_ms.p50": _by_slice(edges, zip(started, (r.ttft_ms for r in done), strict=True)),
        "tpot_ms.p50": _by_slice(edges, zip(started, (r.tpot_ms for r in done), strict=True)),
        "gpu_memory_bytes": _by_slice(edges, gpus),
        "process_memory_bytes": _by_slice(edges, resident),
    }


def _tokens(requests: Sequence[RequestRecord], edges: Floats) -> Floats:
    """Tokens that arrived in each slice; those of an answer are spread evenly over its chunks."""
    times = np.concatenate([np.array(r.chunk_s) for r in requests]) if requests else np.empty(0)
    weights = [np.full(len(r.chunk_s), (r.output_tokens or 0) / len(r.chunk_s)) for r in requests]
    return np.histogram(times, edges, weights=np.concatenate(weights) if weights else None)[0]


def _by_slice(edges: Floats, points: Iterable[tuple[float, float | None]]) -> Floats:
    """The median in each slice of what was seen then."""
    known = [(at_s, value) for at_s, value in points if value is not None]
    slices = np.digitize([at_s for at_s, _ in known], edges) - 1
    values = np.array([value for _, value in known])
    return np.array([np.median(values[slices == i]) if (slices == i).any() else np.nan for i in range(SLICES)])


def trend_of(values: Floats) -> Trend:
    """Return the straight line through evenly spaced figures: its change from first to last relative to their mean, and
    whether its slope differs from none by more than the scatter explains."""
    y = values / values.mean()
    x = (np.arange(len(values)) + 0.5) / len(values) - 0.5
    slope = float((x * y).sum() / (x * x).sum())
    left = y - y.mean() - slope * x
    freedom = len(values) - 2
    error = math.sqrt(float((left * left).sum()) / freedom / float((x * x).sum()))
    return Trend(change_ratio=slope, sure=abs(slope) > student_t(SURE, freedom) * error)


def _notes(trends: Mapping[str, Trend]) -> Iterator[str]:
    for name, trend in trends.items():
        grows = trend.change_ratio > 0
        worse = grows != (name in RATES)
        if worse and trend.sure and abs(trend.change_ratio) >= DRIFT_RATIO:
            yield f"{name} {'rose' if grows else 'fell'} by {abs(trend.change_ratio):.0%} from begin to end of the soak"


def _load_text(level: LevelRecord) -> str:
    if level.concurrency is not None:
        return f"{level.concurrency} clients"
    return "" if level.offered_rps is None else f"{level.offered_rps:.4g} req/s"
