"""One protocol for every strategy: ask, evaluate, tell. What is told is a `TrialRecord`; the truth never leaves here.

A strategy is a factory of sessions; a session belongs to one study. It is asked for candidates and told what came of
them, the first launch being the reference (vLLM's defaults, as far as they run), which every strategy is given alike.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

from autotune.records.spec import Args, StudySpec
from autotune.records.trial import Candidate, Outcome, TrialRecord
from autotune.space import Space
from benchmarks.search.evaluation import Measured
from benchmarks.search.evaluation import measure as measured_afresh
from benchmarks.search.evaluation import truth as true_afresh
from benchmarks.search.landscapes import Landscape
from benchmarks.search.records import Spent, record_of
from benchmarks.search.records import spent as spent_simulated

CLOSE_TO_BEST = 0.85  # measured worse than this share of the best one, a candidate can't be near the optimum
TOLERANCE = 0.03  # of an SLO's limit: what a launch differs by from another
REFUSALS_PER_LAUNCH = 50  # proposals that cost nothing; beyond, a session is given up


class Session(Protocol):
    """One study of one strategy."""

    def ask(self) -> Candidate | None:
        """Return what to launch next; None when nothing is left to try."""
        ...

    def tell(self, record: TrialRecord) -> None:
        """Learn from a launch."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """What a strategy knows: the study file with its seed, the space, and how many launches there will be."""

    spec: StudySpec
    space: Space
    gpus: tuple[str, ...]
    launches: int


Strategy = Callable[[Study], Session]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One launch. `quality`: its true value over the optimum's, 0 where it broke or missed an SLO, None where it was
    measured so far behind the best that it can't matter. `asked_s`: the tuner's CPU time before it."""

    args: Args
    outcome: str
    value: float | None
    quality: float | None
    engine_s: float
    asked_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One strategy on one landscape with one seed."""

    landscape: str
    strategy: str
    seed: int
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluator:
    """Where figures come from: simulated afresh, out of a memo, or out of a table."""

    measure: Callable[[Landscape, Args, int], Measured] = measured_afresh
    truth: Callable[[Landscape, Args], Measured] = true_afresh
    spent: Callable[[Landscape, Candidate, Measured, set[object]], Spent] = spent_simulated


FRESH = Evaluator()


@dataclass(slots=True, kw_only=True)
class Rig:
    """The landscape's side of one run."""

    landscape: Landscape
    seed: int
    optimum: float
    evaluator: Evaluator = FRESH
    compiled: set[object] = field(default_factory=set)
    best: float = 0.0

    def launch(self, candidate: Candidate, number: int, asked_s: float) -> tuple[TrialRecord, Step]:
        """Evaluate a candidate: the record for the strategy, the step for the table."""
        found = self.evaluator.measure(self.landscape, candidate.args, self.seed)
        took = self.evaluator.spent(self.landscape, candidate, found, self.compiled)
        record = record_of(self.landscape, candidate, number, found, took)
        step = Step(
            args=dict(candidate.args),
            outcome=found.outcome.value,
            value=found.value if found.outcome is Outcome.OK else None,
            quality=self._quality(candidate.args, found),
            engine_s=took.total_s,
            asked_s=asked_s,
        )
        return record, step

    def _quality(self, args: Args, found: Measured) -> float | None:
        """Truth is dear, so it is only asked of what may be near the optimum."""
        if found.outcome is not Outcome.OK or found.value is None:
            return 0.0
        self.best = max(self.best, found.value)
        if found.value < CLOSE_TO_BEST * self.best:
            return None
        true = self.evaluator.truth(self.landscape, args)
        holds = true.value is not None and all(x <= TOLERANCE for x in true.excess.values())
        return (true.value or 0.0) / self.optimum if holds else 0.0


def run(
    strategy: str,
    make: Strategy,
    landscape: Landscape,
    *,
    seed: int,
    launches: int,
    optimum: float,
    evaluator: Evaluator = FRESH,
) -> Run:
    """Return what `strategy` makes of `launches` launches, the reference included."""
    rig = Rig(landscape=landscape, seed=seed, optimum=optimum, evaluator=evaluator)
    study = Study(
        spec=replace(landscape.spec, seed=seed), space=landscape.space, gpus=landscape.gpus, launches=launches
    )
    began = time.process_time()
    session = make(study)
    steps = _reference(session, study, rig, began)
    while len(steps) < launches:
        began = time.process_time()
        candidate = session.ask()
        if candidate is None:
            break
        asked_s = time.process_time() - began
        record, step = rig.launch(candidate, len(steps), asked_s)
        began = time.process_time()
        session.tell(record)
        steps.append(replace(step, asked_s=asked_s + time.process_time() - began))
    return Run(landscape=landscape.name, strategy=strategy, seed=seed, steps=tuple(steps))


def _reference(session: Session, study: Study, rig: Rig, began: float) -> list[Step]:
    """The defaults, else what is nearest to them and runs: every one of these is a launch."""
    steps: list[Step] = []
    for candidate in study.space.references(None):
        record, step = rig.launch(candidate, len(steps), time.process_time() - began)
        session.tell(record)
        steps.append(step)
        began = time.process_time()
        if record.outcome.measured:
            break
    return steps
