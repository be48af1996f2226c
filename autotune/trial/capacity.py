"""The highest load at which every SLO holds, in one launch: a ready server comes in, levels and a figure go out.

A lone client tells roughly how fast the engine is. Short probes then move the load to where a twin of the engine in
simulation, fitted to every level so far, puts the capacity; full levels are measured there until they agree, and the
capacity is what the twin says in the long run (`trial.twin_search`). A guard decides whether to believe the twin. Where
it doesn't, the law by which violations grow with the load decides, the twin being no more than a guess to begin with,
and the interval is no narrower than 20 %.

Level k of every launch has the same requests (by the study's seed and k), whatever its load: the arrivals of a slower
candidate are those of a faster one, stretched. Levels of one launch share nothing, so that no prompt is ever cached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import floor, log

from autotune.measure.samples import select
from autotune.models.curve import Crossing, Guess
from autotune.models.twin import Twin
from autotune.records.spec import CapacitySpec, LoadSpec, ObjectiveSpec
from autotune.records.trial import Capacity, Estimate, LevelPlan, LevelRecord, RequestPlan
from autotune.trial.crossing import SloPoint, bracketed, contradicts, first_crossing, load_of, points_of
from autotune.trial.twin_search import Told, TwinSearch, objections_to

PROBES, PROBE_S, PROBE_WARMUP_S, PROBE_DRAIN_S = 6, 15.0, 3.0, 1.0
PROBE_REQUESTS = 30  # a probe lasts for as many, but never longer than a level
LONE_REQUESTS, LONE_S, LONE_DRAIN_S = 8, 4.0, 4.0
BELOW = (
    0.7  # of where the lone client puts the capacity: a level below calibrates as well as one above, and is no queue
)
STREAMS = 4.0  # the search begins at the load of so many lone clients at least
LEVELS, ALONE_LEVELS = 2, 3  # full levels at most: beside a twin, and by themselves once they have seen both sides
CLOSE = 0.12  # of ln(load): the probes have arrived
LONE, SAMPLE, MEASURING, ALONE = 48, 49, 50, 60
"""Seeds: of the lone client, of the sample of lengths, of the first full level beside the twin, and of the first
without. Full levels meet the same requests however many probes a launch needed."""
WORTHLESS = 3.0  # standard deviation of ln(capacity) of a guess that is none
LEAST_HALF = {"twin": 0.08, "levels": 0.20}
"""Of an interval, relative: what holds the truth in about nine of ten launches of engines unlike the model
(docs/capacity.md)."""
ENOUGH_HALF = 0.10  # more levels narrow the fitted curve's own interval hardly further
LEAST = {"rps": 0.02, "concurrency": 1.0}
MOST = {"rps": 5_000.0, "concurrency": 4_096.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What the search needs of a launch: to plan level k of a load, to run it, to run one that is no part of the curve
    (None: as any other), and to wait until the engine has nothing left to do."""

    plan: Callable[[LoadSpec, int], LevelPlan]
    run: Callable[[LevelPlan], LevelRecord]
    run_aside: Callable[[LevelPlan], LevelRecord] | None = None
    settle: Callable[[], object] = lambda: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The capacity, every level that was run for it, in order, and what the twin said, believed or not."""

    capacity: Capacity
    levels: tuple[LevelRecord, ...]
    twin_said: float | None = None


def find_capacity(
    objective: ObjectiveSpec,
    bench: Bench,
    *,
    twin: Twin | None = None,
    on_phase: Callable[[str], None] = lambda _: None,
) -> Found:
    """Search the capacity that `objective.load.capacity` asks for.

    `twin` is what is known of the engine before it is loaded, None when nothing is. At most LEVELS full levels are
    measured beside it. Raises whatever `bench` raises.
    """
    run = _Run(objective=objective, bench=bench, on_phase=on_phase)
    doubts = list(objections_to(twin, objective))
    search = None
    if twin is not None and not doubts:
        search = TwinSearch(twin=twin, objective=objective, sample=run.sample, bounds=(run.low, run.high))
    begin = _begin(run, search)
    told = None
    if search is not None:
        _approach(run, search, begin)
        told, reasons = search.told()
        doubts = [*reasons, *_contradictions(run, told)]
    trusted = told is not None and told.believed and not doubts
    doubts += run.doubts
    if told is not None and trusted:
        half = max(LEAST_HALF["twin"], told.spread)
        capacity = run.capacity("twin", told.value, told.value * (1 - half), told.value * (1 + half), doubts)
    else:
        guess = _guess(told)
        _bracket(run, begin, guess)
        capacity = run.capacity("levels", *_crossed(run, guess), doubts)
    return Found(capacity=capacity, levels=tuple(run.records), twin_said=told.value if told is not None else None)


def _begin(run: _Run, search: TwinSearch | None) -> float:
    """Where to begin: below what a twin makes of a lone client, at least at the load of a few such clients."""
    plan, record = run.lone()
    known = search.start(plan, record) if search is not None else 0.0
    answered = [r.done_s for r in record.requests if r.done_s is not None and r.error is None]
    each_s = max(answered) / len(answered) if answered else LONE_S + LONE_DRAIN_S
    return run.clipped(max(BELOW * known, STREAMS if run.closed else STREAMS / each_s))


def _approach(run: _Run, search: TwinSearch, at: float) -> None:
    """Probes until they have arrived, then full levels until they agree, each where the twin says by then."""
    try:
        for index in range(PROBES):
            search.add(*run.level(at, index, probe=True))
            before, at = at, run.clipped(search.next(at))
            if abs(log(at / before)) < CLOSE:
                break
        for index in range(LEVELS):
            search.add(*run.level(at, MEASURING + index))
            at = run.clipped(search.next(at))
            if search.settled(at):
                break
    except OutOfTime:
        run.doubts.append(f"load_s, {run.wanted.load_s:g} s, ended the search after {len(run.records)} levels")


def _contradictions(run: _Run, told: Told | None) -> Iterator[str]:
    """What the counts of violations alone have against the twin's capacity."""
    if told is not None and told.believed and told.value and contradicts(run.points, told.value):
        yield f"the levels' own violations speak against the twin's {told.value:.4g}"


def _guess(told: Told | None) -> Guess | None:
    """What a twin that the guard refused is still good for; one that the levels contradict for nothing."""
    if told is None or told.believed or not told.value:
        return None
    return Guess(load=told.value, sd=min(told.spread, WORTHLESS))


def _bracket(run: _Run, begin: float, guess: Guess | None) -> None:
    """Levels at where the violations so far put the crossing, short ones until both sides were seen.

    They end when the curve is known well enough, when there are enough, or at a bound of the search.
    """
    full = 0
    try:
        for index in count(ALONE):
            found = first_crossing(run.points, guess)
            at = _within_reach(run, found, begin)
            stuck = at in {run.low, run.high} and run.tried().count(at) >= 2
            seen = bracketed(run.points)
            if stuck or full >= ALONE_LEVELS or (found is not None and seen and _narrow(found)):
                return
            run.level(at, index, probe=not seen)
            full += seen
    except OutOfTime:
        return


def _narrow(found: Crossing) -> bool:
    return log(found.high / found.low) / 2 <= ENOUGH_HALF


def _within_reach(run: _Run, found: Crossing | None, begin: float) -> float:
    """Not beyond twice what was tried."""
    if found is None or not run.records:
        return begin
    return run.clipped(min(max(found.load, min(run.tried()) / 2), max(run.tried()) * 2))


def _crossed(run: _Run, guess: Guess | None) -> tuple[float, float | None, float | None]:
    """Value and interval by levels alone."""
    found = first_crossing(run.points, guess)
    if found is None:
        return 0.0, None, None
    half = LEAST_HALF["levels"]
    return found.load, min(found.low, found.load * (1 - half)), max(found.high, found.load * (1 + half))


class OutOfTime(Exception):
    """The next level would take more time under load than the study allows a launch."""


@dataclass(slots=True)
class _Run:
    """The levels of one launch, within its bounds of load and of time."""

    objective: ObjectiveSpec
    bench: Bench
    on_phase: Callable[[str], None]
    records: list[LevelRecord] = field(default_factory=list)
    points: list[SloPoint] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)
    spent_s: float = 0.0

    @property
    def wanted(self) -> CapacitySpec:
        assert self.objective.load.capacity is not None  # noqa: S101 - nobody searches what isn't asked for
        return self.objective.load.capacity

    @property
    def low(self) -> float:
        return self.wanted.low or LEAST[self.wanted.of]

    @property
    def high(self) -> float:
        return self.wanted.high or MOST[self.wanted.of]

    @property
    def closed(self) -> bool:
        return self.wanted.of == "concurrency"

    def tried(self) -> list[float]:
        return [load_of(record) for record in self.records]

    def clipped(self, at: float) -> float:
        at = min(max(at, self.low), self.high)
        return float(round(at)) if self.closed else at

    def level(self, at: float, index: int, *, probe: bool = False) -> tuple[LevelPlan, LevelRecord]:
        """Run a level at a load. Raises OutOfTime."""
        plan = self.bench.plan(self._spec(at, probe=probe), index)
        if probe:
            plan = replace(plan, drain_s=PROBE_DRAIN_S)  # what is cut is cut in the simulation, too
        self.bench.settle()
        self.on_phase(f"{'probe' if probe else 'level'} at {at:.4g} {'clients' if self.closed else 'req/s'}")
        record = self.bench.run(plan)
        self.records.append(record)
        self.points += points_of(self.objective, record)
        self.spent_s += under_load_s(record)
        return plan, record

    def lone(self) -> tuple[LevelPlan, LevelRecord]:
        """A few requests, one after the other."""
        spec = replace(
            self.objective.load,
            capacity=None,
            concurrency=1,
            max_requests=LONE_REQUESTS,
            duration_s=LONE_S,
            warmup_s=0.0,
            repeats=1,
        )
        plan = replace(self.bench.plan(spec, LONE), drain_s=LONE_DRAIN_S)
        self.on_phase("a lone client")
        record = (self.bench.run_aside or self.bench.run)(plan)
        self.spent_s += under_load_s(record)
        return plan, replace(record, window_s=(0.0, LONE_S))

    def sample(self, count: int) -> Sequence[RequestPlan]:
        """Requests of the workload that are never sent, for their lengths."""
        spec = replace(self.objective.load, capacity=None, concurrency=1, max_requests=count, repeats=1)
        requests = self.bench.plan(spec, SAMPLE).requests
        return [requests[index] for index in range(len(requests))]

    def _spec(self, at: float, *, probe: bool) -> LoadSpec:
        full = self.objective.load
        warmup_s = min(full.warmup_s, PROBE_WARMUP_S) if probe else full.warmup_s
        longest_s = self.wanted.load_s - self.spent_s - warmup_s
        wanted_s = full.duration_s
        if probe:
            wanted_s = min(wanted_s, PROBE_S if self.closed else max(PROBE_S, PROBE_REQUESTS / at))
        if longest_s < wanted_s / 2:  # a level that holds next to nothing is not worth its warm-up
            raise OutOfTime
        return replace(
            full,
            capacity=None,
            poisson_rps=None if self.closed else at,
            concurrency=int(at) if self.closed else None,
            duration_s=min(wanted_s, longest_s),
            warmup_s=warmup_s,
            repeats=1,
        )

    def capacity(
        self, method: str, value: float, low: float | None, high: float | None, doubts: Sequence[str]
    ) -> Capacity:
        """The result, cut to the bounds of the search."""
        value, low, high, at_bound = self._bounded(value, low, high)
        return Capacity(
            of=self.wanted.of,
            value=Estimate(value=value, low=low, high=high, n=sum(len(select(r).started) for r in self.records)),
            method=method,
            levels=len(self.records),
            load_s=self.spent_s,
            doubts=(*doubts, *at_bound),
        )

    def _bounded(
        self, value: float, low: float | None, high: float | None
    ) -> tuple[float, float | None, float | None, list[str]]:
        if value >= self.high:
            said = f"the SLOs hold at the highest load of the search, {self.high:g}"
            return self.high, None if low is None else min(low, self.high), None, [said]
        if value < self.low:
            return 0.0, 0.0, self.low, [f"the SLOs do not hold at the lowest load of the search, {self.low:g}"]
        return float(floor(value)) if self.closed else value, low, high, []


def under_load_s(record: LevelRecord) -> float:
    """Seconds from a level's beginning to its last answer."""
    return max((r.done_s or r.sent_s for r in record.requests), default=record.window_s[1])
