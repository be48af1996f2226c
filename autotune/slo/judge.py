"""Rules on each SLO of an objective from the levels of one launch. Unsure is not pass.

Upper bounds on quantiles and ratios: the sequential test on the pooled violation counts, which never contradicts the
plain figures. Other quantiles, means and rates: by their interval. Plain figures of the launch: as they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Bound, ObjectiveSpec, Slo
from autotune.records.trial import Estimate, LevelRecord, Measurement, Ruling, SloRuling, Verdict
from autotune.slo.evidence import Levels, counts_of, estimate_of, excess_of
from autotune.slo.guard import overload_of
from autotune.slo.sequential import Counts, allowed_share, boundary, samples_to_pass, statistic

NOT_MEASURED = 0.999
"""Constraint value of an SLO without a figure: nearly the worst, yet better than a launch that failed (1 and more)."""


def judge(objective: ObjectiveSpec, levels: Sequence[tuple[LevelRecord, Measurement]]) -> Verdict:
    """Return the verdict on the levels (repeats) of one launch: fail if any SLO fails, else unsure if any is unsure."""
    slos = tuple(_rule(slo, objective.confidence, levels) for slo in objective.slos)
    found = {slo.ruling for slo in slos}
    ruling = next((worst for worst in (Ruling.FAIL, Ruling.UNSURE) if worst in found), Ruling.PASS)
    reasons = dict.fromkeys(reason for _, measurement in levels for reason in measurement.untrusted)
    return Verdict(slos=slos, ruling=ruling, untrusted=tuple(reasons))


def constraint_value(ruling: SloRuling) -> float:
    """Return what Optuna is told of an SLO: x / (1 + |x|) of the relative excess x, in (-1, 1); above 0 violates.

    NOT_MEASURED where there is no excess or an infinite one, and never more than that.
    """
    x = ruling.excess
    return NOT_MEASURED if x is None or math.isinf(x) else min(NOT_MEASURED, x / (1 + abs(x)))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Finding:
    """`excess` replaces the figure's own where that can't show why the SLO failed."""

    ruling: Ruling
    why: str
    excess: float | None


def _rule(slo: Slo, confidence: float, levels: Levels) -> SloRuling:
    estimate = estimate_of(slo.metric, levels)
    excess = None if estimate is None else excess_of(slo, estimate.value)
    finding = _find(slo, confidence, levels, estimate, excess)
    if finding.ruling is Ruling.FAIL and finding.excess is not None and finding.excess <= 0:
        finding = replace(finding, excess=None)  # its figure looks fine only because the worst requests have none
    return SloRuling(
        metric=slo.metric,
        bound=slo.bound,
        limit=slo.limit,
        estimate=estimate,
        excess=finding.excess,
        ruling=finding.ruling,
        why=finding.why,
    )


def _find(slo: Slo, confidence: float, levels: Levels, estimate: Estimate | None, excess: float | None) -> _Finding:
    overload = next((why for level, _ in levels if (why := overload_of(level.stopped, slo.metric))), None)
    if overload:
        return _Finding(ruling=Ruling.FAIL, why=overload, excess=excess)
    share, counts = allowed_share(slo), counts_of(slo, levels)
    if share is not None and counts.judged:
        return _by_counts(counts, share, confidence, excess)
    ruling, why = _unmeasured(levels) if estimate is None else _by_interval(slo, estimate)
    return _Finding(ruling=ruling, why=why, excess=excess)


def _by_counts(counts: Counts, share: float, confidence: float, excess: float | None) -> _Finding:
    """The test, and the plain figures where they contradict it: a failed request has no latency, yet violates."""
    seen = counts.violated / counts.judged
    above, inside = seen > share, excess is None or excess <= 0
    reached, bound = statistic(counts, share), boundary(confidence)
    text = f"{counts.violated} of {counts.judged} violate, {share:.3g} of them may"
    if reached >= bound and above:
        by_share = math.inf if share == 0 else seen / share - 1
        return _Finding(ruling=Ruling.FAIL, why=text, excess=by_share if inside else excess)
    if reached <= -bound and not above and inside:
        return _Finding(ruling=Ruling.PASS, why=text, excess=excess)
    least = samples_to_pass(share, confidence, counts.inflation)
    hint = f"a pass takes at least {least:.0f}" if counts.judged < least else "too close to tell"
    return _Finding(ruling=Ruling.UNSURE, why=f"{text}: {hint}", excess=excess)


def _by_interval(slo: Slo, estimate: Estimate) -> tuple[Ruling, str]:
    metric = parse_metric(slo.metric)
    if metric is not None and metric.kind is MetricKind.AMOUNT:
        return (Ruling.PASS if _holds(slo, estimate.value) else Ruling.FAIL), "the figure of this launch"
    if estimate.low is None or estimate.high is None:
        return Ruling.UNSURE, f"{estimate.n} samples can't bound it"
    held = {_holds(slo, estimate.low), _holds(slo, estimate.high)}
    if len(held) == 2:
        return Ruling.UNSURE, "the limit lies inside the interval"
    return (Ruling.PASS if True in held else Ruling.FAIL), "the whole interval lies on this side of the limit"


def _holds(slo: Slo, value: float) -> bool:
    return value <= slo.limit if slo.bound is Bound.MAX else value >= slo.limit


def _unmeasured(levels: Levels) -> tuple[Ruling, str]:
    sent = sum(measurement.requests for _, measurement in levels)
    failed = sum(measurement.errors for _, measurement in levels)
    if sent and failed == sent:
        return Ruling.FAIL, f"all {sent} requests failed"
    return Ruling.UNSURE, f"not measured: {sent} requests in the window, {failed} of them failed, none gave a figure"
