"""What a twin of the engine makes of the levels so far: where to measure next, the capacity, and its doubts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import exp, inf, log

from autotune.models.observed import ObservedLevel, observe
from autotune.models.simulation import Trace, trace_of
from autotune.models.stationary import FINE, ROUGH, Stationary, pooled
from autotune.models.twin import BODY, TAIL, Fitter, Match, Twin, modelled
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import LevelPlan, LevelRecord, RequestPlan

DISAGREE, RESIDUAL = 0.10, 0.15
"""What the guard bears: of ln(capacity) between the fits of body and tail, and of ln(p99) between twin and engine."""
FAILED = 0.02  # share of failed requests; the twin's never fail
FARTHEST = log(4.0)  # one level's move
POPULATION = 1500  # requests whose lengths stand for the workload's
BEYOND = 4.0  # how far outside its bounds a capacity is still told from another
NEAR = 0.25  # of ln(load): levels from which alone the capacity can be told
ALIKE, AGREEING = 0.02, 3  # so many levels near the capacity that tell the same within so much need no further one
LEAST_SD = 0.05  # of ln(capacity): how well a twin that is not believed can be right at most


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """The twin's capacity. `spread`, relative: of one believed by how much the levels near it disagree with each other,
    of another the standard deviation that is left to it, by how much body and tail disagree."""

    value: float
    spread: float
    believed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """What the guard looks at: the capacity when only the body, only the tail is fitted, and how far off its p99 then
    stays. The latter is that of the fit to the tail; in other fits it says little: near saturation 2 % of rate double a
    p99 of TTFT."""

    body: float
    tail: float
    residual: float

    @property
    def apart(self) -> float:
        """ln of what body and tail give; infinite where one of them gives nothing."""
        return abs(log(self.body / self.tail)) if self.body and self.tail else inf

    @property
    def sd(self) -> float:
        """Of ln(capacity), when the twin is no more than a guess."""
        return max(LEAST_SD, self.apart / 2, self.residual / 2)

    def objections(self) -> Iterator[str]:
        """Why the twin is not to be believed."""
        if self.apart > DISAGREE:
            yield f"capacity {self.body:.4g} by p50 and p90, but {self.tail:.4g} by p97 and p99"
        if self.residual > RESIDUAL:
            yield f"its p99 is off by {self.residual:.0%}"


def objections_to(twin: Twin | None, objective: ObjectiveSpec) -> Iterator[str]:
    """Why a twin can't answer what an objective asks, before anything is measured."""
    unknown = [slo.metric for slo in objective.slos if not modelled(slo) and slo.metric != "error_ratio"]
    if twin is None:
        yield "no twin: too little is known of the engine to simulate it"
    if objective.workload.sessions is not None:
        yield "no twin: sessions are not simulated"
    if unknown:
        yield f"no twin: it can't tell {', '.join(unknown)}"
    elif not any(map(modelled, objective.slos)):
        yield "no twin: no SLO limits a latency"


@dataclass(slots=True)
class TwinSearch:
    """`sample` gives requests of the workload that are never sent, for their lengths; `bounds`: of the search."""

    twin: Twin
    objective: ObjectiveSpec
    sample: Callable[[int], Sequence[RequestPlan]]
    bounds: tuple[float, float]
    levels: list[ObservedLevel] = field(default_factory=list)
    _alone: ObservedLevel | None = None
    _fitter: Fitter | None = None
    _rough: Stationary | None = None

    def start(self, plan: LevelPlan, record: LevelRecord) -> float:
        """Where the requests of a lone client put the capacity, far off as that is; 0 where they don't tell."""
        level = self._observed(plan, record)
        if level is None or not len(level.seen.ttft_ms):
            return 0.0
        self._alone = level
        fitter = Fitter(twin=self.twin, slos=self.objective.slos)
        fitter.add(level)
        pace = fitter.fit().twin.pace
        self._fits().begin = log(pace)
        return self._stationary().capacity(pace)

    def add(self, plan: LevelPlan, record: LevelRecord) -> None:
        """Take note of a level. Those without a request, or with one that the twin would refuse, are left out."""
        level = self._observed(plan, record)
        if level is None:
            return
        self.levels.append(level)
        self._fits().add(level)
        if self._counted_by_server():
            self._rough = None

    def next(self, at: float) -> float:
        """Where the twin, fitted to all levels so far, puts the capacity, but not too far from `at`."""
        if not self.levels:
            return at * exp(FARTHEST)
        told = self._stationary().capacity(self._fits().fit().twin.pace)
        apart = log(told / at) if told > 0 else -FARTHEST
        return at * exp(min(max(apart, -FARTHEST), FARTHEST))

    def settled(self, at: float) -> bool:
        """Whether the levels near `at` tell the same, so that another would add little."""
        alone = self._alone_near(self._fits().fit(), at)
        return len(alone) >= AGREEING and (max(alone) - min(alone)) / at / 2 <= ALIKE

    def told(self) -> tuple[Told | None, list[str]]:
        """The capacity by one factor, or else by two; and what the guard has against either."""
        if not self.levels:
            return None, ["no level to fit a twin to"]
        reasons = list(self._strangers())
        guesses: list[Told] = []
        for name, fit in (("one factor", self._fits().fit), ("two factors", self._fits().fit_both)):
            match = fit()
            check = self._check(match.twin.compute)
            objections = list(check.objections())
            if not objections and not reasons:
                return self._believed(match), []
            reasons += [f"twin of {name}: {reason}" for reason in objections]
            guesses.append(Told(value=check.tail, spread=check.sd, believed=False))
        return min(guesses, key=lambda told: told.spread), reasons

    def _believed(self, match: Match) -> Told:
        rough = self._stationary()
        pace, compute = match.twin.pace, match.twin.compute
        guess = rough.capacity(pace, compute)
        if not guess:
            return Told(value=0.0, spread=1.0, believed=True)
        fine = replace(rough, guess=guess, requests=FINE, _trace=None, _knots={})
        alone = self._alone_near(match, guess)
        spread = (max(alone) - min(alone)) / guess / 2 if alone else 1.0
        return Told(value=fine.capacity(pace, compute), spread=spread, believed=True)

    def _alone_near(self, match: Match, value: float) -> list[float]:
        """The capacities that the levels near one would give each alone."""
        compute = match.twin.compute
        near = [i for i, level in enumerate(self.levels) if value and abs(log(level.rate / value)) < NEAR]
        paces = [self._fits().fit(compute=compute, among=[i]).twin.pace for i in near]
        return [told for pace in paces if (told := self._stationary().capacity(pace, compute))]

    def _strangers(self) -> Iterator[str]:
        failed = max(level.failed_ratio for level in self.levels)
        if failed > FAILED:
            yield f"{failed:.0%} of a level's requests failed; a twin's never do"

    def _check(self, compute: float) -> Check:
        fits = [self._fits().fit(matched, compute=compute) for matched in (BODY, TAIL)]
        body, tail = (self._stationary().capacity(fit.twin.pace, compute) for fit in fits)
        return Check(body=body, tail=tail, residual=fits[1].residual)

    def _observed(self, plan: LevelPlan, record: LevelRecord) -> ObservedLevel | None:
        shared = self.objective.workload.prefix is not None
        level = observe(record, [plan.requests[r.index] for r in record.requests] if shared else ())
        return level if level.trace.prompt_tokens.size and self.twin.fits(level.trace) else None

    def _fits(self) -> Fitter:
        if self._fitter is None:
            self._fitter = Fitter(twin=self.twin, slos=self.objective.slos)
        return self._fitter

    def _stationary(self) -> Stationary:
        if self._rough is None:
            wanted, (low, high) = self.objective.load.capacity, self.bounds
            self._rough = Stationary(
                twin=self.twin,
                population=self._population(),
                slos=self.objective.slos,
                closed=wanted is not None and wanted.of == "concurrency",
                guess=(wanted.low if wanted is not None else None) or 1.0,
                bounds=(low / BEYOND, high * BEYOND),
                requests=ROUGH,
            )
        return self._rough

    def _counted_by_server(self) -> bool:
        """A dataset's texts have as many tokens as a server says, so their lengths are those of the levels."""
        return self.objective.workload.dataset is not None

    def _population(self) -> Trace:
        seen = self.levels or ([self._alone] if self._alone else [])
        if self._counted_by_server() and seen:
            return pooled([level.trace for level in seen])
        requests = self.sample(POPULATION)
        return trace_of(
            [r.prompt_tokens or 1 for r in requests],
            [r.output_tokens for r in requests],
            0.0,
            [r.prefix_group for r in requests],
            [r.prefix_tokens for r in requests],
        )
