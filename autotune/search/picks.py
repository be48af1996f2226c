"""Which trial is meant by `throughput`, `latency`, `knee` or a number: records in, a trial out.

The front is made of trials that met every SLO and whose figures are trusted: one that missed dominates nothing. Its
axes are the objective and the latency it is traded against; of an objective that is a latency itself, output tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import InputError
from autotune.records.metrics import LATENCIES, parse_metric
from autotune.records.spec import Direction, ObjectiveSpec, StudySpec
from autotune.records.trial import Outcome, TrialRecord
from autotune.trial.figures import figure_of

NAMED = ("throughput", "latency", "knee")
TOKENS = "output_tok_per_s_per_gpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A trial on the front: its throughput (more is better) and its latency (less is), in their metrics' units."""

    trial: int
    throughput: float
    latency: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Axes:
    """What a front trades off: two metrics, and whether less of the first is better (a cost)."""

    throughput: str
    latency: str
    less: bool = False


def axes_of(objective: ObjectiveSpec) -> Axes:
    """Return the objective, and beside it the first latency that has an SLO, else p99 TTFT."""
    latencies = [slo.metric for slo in objective.slos if _is_latency(slo.metric)]
    if _is_latency(objective.metric):
        return Axes(throughput=TOKENS, latency=objective.metric)
    less = objective.direction is Direction.MINIMIZE
    return Axes(throughput=objective.metric, latency=next(iter(latencies), "ttft_ms.p99"), less=less)


def front(spec: StudySpec, records: Sequence[TrialRecord]) -> tuple[Point, ...]:
    """Return the trials that no other feasible one beats in one figure without losing in the other, by latency."""
    axes = axes_of(spec.objective)
    points = [point for record in records if (point := _point(spec, axes, record)) is not None]
    sign = -1.0 if axes.less else 1.0
    found: list[Point] = []
    for point in sorted(points, key=lambda p: (p.latency, -sign * p.throughput)):
        if not found or sign * point.throughput > sign * found[-1].throughput:
            found.append(point)
    return tuple(found)


def knee(points: Sequence[Point]) -> Point | None:
    """Return the point of a front farthest from the straight line between its ends, both figures as logarithms scaled
    to 0..1 over the front: where more of one begins to cost much of the other. None of an empty front.

    Das, I. (1999), On characterizing the "knee" of the Pareto curve, Structural Optimization 18. Of two points neither
    lies off the line: then it is the one of lower latency.
    """
    if not points:
        return None
    best, lowest = _logs([p.throughput for p in points]), _logs([p.latency for p in points])
    rising = points[-1].throughput >= points[0].throughput
    gains = best if rising else [1 - share for share in best]
    scores = [gain - share for gain, share in zip(gains, lowest, strict=True)]
    return points[max(range(len(points)), key=lambda i: (round(scores[i], 12), -i))]


def picked(spec: StudySpec, records: Sequence[TrialRecord], word: str) -> int:
    """Return the number of the trial that `word` means. Raises InputError for a word that means none."""
    if word.isascii() and word.isdigit():
        return _numbered(records, int(word))
    if word not in NAMED:
        raise InputError(f"{word!r} is no pick", f"one of {', '.join(NAMED)}, or a trial's number")
    points = front(spec, records)
    if not points:
        raise InputError("no trial met every SLO, so there is no front to pick from", "give a trial's number")
    chosen = {"latency": points[0], "throughput": points[-1], "knee": knee(points) or points[0]}
    return chosen[word].trial


def _numbered(records: Sequence[TrialRecord], number: int) -> int:
    """A launch of the finals stands for the configuration that it measured again."""
    record = next((record for record in records if record.number == number), None)
    if record is None:
        raise InputError(f"the run has no trial {number}", "autotune show lists them")
    return number if record.final is None else record.final.of


def _point(spec: StudySpec, axes: Axes, record: TrialRecord) -> Point | None:
    untrusted = record.verdict is not None and record.verdict.untrusted
    if record.outcome is not Outcome.OK or untrusted or record.final is not None:
        return None
    throughput, latency = (figure_of(record, name, spec.price) for name in (axes.throughput, axes.latency))
    if throughput is None or latency is None:
        return None
    return Point(trial=record.number, throughput=throughput.value, latency=latency.value)


def _logs(values: Sequence[float]) -> list[float]:
    logs = [math.log(max(value, 1e-12)) for value in values]
    low, high = min(logs), max(logs)
    return [(each - low) / (high - low) if high > low else 0.0 for each in logs]


def _is_latency(name: str) -> bool:
    metric = parse_metric(name)
    return metric is not None and metric.base in LATENCIES
