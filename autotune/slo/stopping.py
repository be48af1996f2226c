"""Ends a level as soon as its verdict is settled: what stops a level is what the judge then rules.

The rule that it is given is the judge itself, on the part of the level that is *resolved*: the requests up to the first
that has not ended. A request still running is left out with all that came after it, for who looks at those alone that
have ended sees the short and the lucky ones. The window of a level that was stopped ends with that part (`trimmed`), so
that the judge finds in it the very requests that the decision was made on.

The test on violations may be made at any time; an interval holds for one look only, so that here it has to be clear of
the limit by more (`INTERVAL_TIMES`).

A fail stops the level at once: of a candidate that fails only the size of its miss is told. A pass stops it only when
the figure of the objective is known well enough, too, since that figure decides who wins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Slo
from autotune.records.trial import Estimate, LevelRecord, RequestRecord, Ruling, SloRuling, Verdict
from autotune.slo.guard import CUT, OverloadGuard, Progress
from autotune.slo.sequential import allowed_share

PRECISION = 0.02
"""Half the interval of the objective, relative to its value, at which a pass may stop a level: below what launches of
one configuration usually differ by."""

FIRST_LOOK = 20
"""Requests resolved before the first look: fewer are not trusted anyway."""

LOOK_GROWTH = 1.05
"""The next look is due when so many times as many are resolved: a look costs as much as a judgement."""

INTERVAL_TIMES = 2.5
INTERVAL_FROM = 200
"""An SLO on a mean or a rate is ruled by an interval, which holds for one look. Looked at all the time it is settled
once an interval so many times as wide is clear of the limit, from so many requests on (docs/measurement.md)."""

_SETTLED = "settled: "


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What a part of a level comes to: its verdict, and the figure of the objective (None where there is none yet)."""

    verdict: Verdict
    objective: Estimate | None


Rule = Callable[[Sequence[RequestRecord], float], Standing | None]
"""Measures and judges a part of a level: its requests, and the time in s on the level's clock at which it ends. None
while that lies in the warm-up."""


def settled_by(stopped: str | None) -> bool:
    """Tell whether a level was stopped since its verdict was settled."""
    return stopped is not None and stopped.startswith(_SETTLED)


@dataclass(slots=True)
class Resolved:
    """The requests up to the first that has not ended, in the order in which they were sent.

    `measured` counts those that are no warm-up; all that started before `until_s` are there.
    """

    requests: list[RequestRecord] = field(default_factory=list)
    measured: int = 0
    until_s: float = 0.0
    _later: dict[int, RequestRecord] = field(default_factory=dict)

    def add(self, request: RequestRecord) -> None:
        """Take in a request that ended; one that the client cut has not."""
        if request.error == CUT:
            return
        self._later[request.index] = request
        while (following := self._later.pop(len(self.requests), None)) is not None:
            self.requests.append(following)
            self.measured += not following.warmup
            self.until_s = max(self.until_s, math.nextafter(following.start_s, math.inf))


@dataclass(slots=True)
class Stopper:
    """Give it every record (`record`), call it every half second or oftener: the reason to stop the level, or None.

    `metric` is the objective's; without a `rule` only the guard speaks. It keeps a state: each level needs its own.
    """

    guard: OverloadGuard
    rule: Rule | None
    metric: str
    _resolved: Resolved = field(default_factory=Resolved)
    _due: int = FIRST_LOOK
    _settled: tuple[int, float] | None = None
    """Requests that the decision was made on, and the end of their window."""

    def record(self, request: RequestRecord) -> None:
        """Take note of a request that ended."""
        self.guard.record(request)
        self._resolved.add(request)

    def __call__(self, progress: Progress) -> str | None:
        """Return the reason to stop the level, or None."""
        return self.guard(progress) or (self._look() if progress.phase == "window" else None)

    def trimmed(self, level: LevelRecord) -> LevelRecord:
        """Return a level that this stopped with its window ending where the verdict was settled, others as they are."""
        if self._settled is None or not settled_by(level.stopped):
            return level
        count, end_s = self._settled
        unseen_s = (r.start_s for r in level.requests if r.index >= count)  # several clients may send out of order
        end_s = min([end_s, *unseen_s])
        return replace(level, window_s=(min(level.window_s[0], end_s), end_s))

    def _look(self) -> str | None:
        resolved = self._resolved
        if self.rule is None or resolved.measured < self._due:
            return None
        self._due = math.ceil(resolved.measured * LOOK_GROWTH) + 1
        standing = self.rule(resolved.requests, resolved.until_s)
        reason = None if standing is None else _reason(standing, self.metric, resolved.measured)
        if reason is not None:
            self._settled = len(resolved.requests), resolved.until_s
        return reason


def _reason(standing: Standing, metric: str, requests: int) -> str | None:
    settled = [slo for slo in standing.verdict.slos if _stands_looking(slo, requests)]
    failed = next((slo for slo in settled if slo.ruling is Ruling.FAIL), None)
    if failed is not None:
        return f"{_SETTLED}{failed.metric} fails: {failed.why}"
    every = len(settled) == len(standing.verdict.slos) > 0 and standing.verdict.ruling is Ruling.PASS
    return f"{_SETTLED}every SLO holds" if every and _precise(standing.objective, metric, requests) else None


def _stands_looking(slo: SloRuling, requests: int) -> bool:
    """Whether a ruling may be made at any time, or if it rests on an interval, is clear enough for that."""
    estimate, metric = slo.estimate, parse_metric(slo.metric)
    counted = allowed_share(Slo(metric=slo.metric, limit=slo.limit, bound=slo.bound)) is not None
    if estimate is None or counted or (metric is not None and metric.kind is MetricKind.AMOUNT):
        return True
    if estimate.low is None or estimate.high is None or requests < INTERVAL_FROM:
        return False
    low = estimate.value - INTERVAL_TIMES * (estimate.value - estimate.low)
    high = estimate.value + INTERVAL_TIMES * (estimate.high - estimate.value)
    return not low <= slo.limit <= high


def _precise(objective: Estimate | None, metric: str, requests: int) -> bool:
    parsed = parse_metric(metric)
    if parsed is not None and (parsed.kind is MetricKind.AMOUNT or parsed.base.startswith("capacity_")):
        return True  # a figure of the launch or of many levels, which more of this one doesn't make better known
    if objective is None or objective.low is None or objective.high is None or requests < INTERVAL_FROM:
        return False
    return (objective.high - objective.low) / 2 <= PRECISION * abs(objective.value)
