"""SLO-Guard's TBA-TPE, after its source: simulated annealing that looks for what runs, then TPE told all of it.

Restated from github.com/Chrislysen/SLO-Guard, `optimizer/tba_tpe_hybrid.py` (2026-04): its numbers, on the space and
the constraints of this benchmark. Left out: its blacklist of categories, which takes three crashes in a row.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

from autotune.records.spec import Choice, FloatRange, ParamValue
from autotune.records.trial import Candidate, TrialRecord
from autotune.space import RuledOut
from autotune.space.space import Parameter
from benchmarks.search.asking import OptunaSession, start_of
from benchmarks.search.optima import candidate_in

RANDOM = 3
LEAST, MOST = 5, 15  # launches before TPE takes over
FEASIBLE, BAD = 5, 3  # that it wants to have seen by then
HOT, COLD, COOLING, REHEATING, PATIENCE = 1.0, 1e-3, 0.92, 2.5, 4
STRUCTURAL = (0.5, 0.25)  # probability of changing a category, at the beginning and at the end
SPREAD = 0.3  # standard deviation of a step at full heat, in shares of a range
TRIES = 100

Params = dict[str, ParamValue]


@dataclass(slots=True, kw_only=True)
class AnnealingSession:
    """Follows `protocol.Session`; `inner` is the TPE that is told everything from the beginning."""

    inner: OptunaSession
    _heat: float = HOT
    _stuck: int = 0
    _here: tuple[Params, float, float] | None = None  # parameters, violation, value (larger is better)
    _feasible: int = 0
    _bad: int = 0
    _values: list[float] = field(default_factory=list)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(self.inner.study.spec.seed)

    @property
    def _told(self) -> int:
        return self._feasible + self._bad

    def ask(self) -> Candidate | None:
        """Return a neighbour of where the annealing stands; from the hand-over on, what TPE proposes."""
        if self._told >= MOST or (self._told >= LEAST and self._feasible >= FEASIBLE and self._bad >= BAD):
            return self.inner.ask()
        for _ in range(TRIES):
            candidate = self._proposed()
            if candidate is not None and (self.inner.gate is None or self.inner.gate.exclude(candidate.args) is None):
                return candidate
        return self.inner.ask()

    def tell(self, record: TrialRecord) -> None:
        """Move, or stay, by the rule of annealing."""
        self.inner.tell(record)
        violation = sum(max(0.0, slo.excess or 0.0) for slo in record.verdict.slos) if record.verdict else math.inf
        value = record.objective.value if record.objective else -math.inf
        good = violation == 0.0
        self._feasible, self._bad = self._feasible + good, self._bad + (not good)
        self._values += [value] if good else []
        if record.outcome.measured and self._moves(violation, value):
            self._here = {**start_of(self.inner.study.space), **record.params}, violation, value

    def _moves(self, violation: float, value: float) -> bool:
        if self._here is None:
            return True
        _, before, worth = self._here
        improved = violation < before if before > 0 else (violation == 0.0 and value > worth)
        if before == 0.0:
            span = max(self._values) - min(self._values) if len(self._values) > 1 else 1.0
            worse = (worth - value) / max(span, 1e-6) if violation == 0.0 else math.inf
        else:
            worse = (violation - before) / 0.1
        accepted = improved or self._rng.random() < math.exp(-max(worse, 0.0) / self._heat)
        self._cool(improved=improved)
        return accepted

    def _cool(self, *, improved: bool) -> None:
        self._stuck = 0 if improved else self._stuck + 1
        if improved:
            self._heat = max(self._heat * COOLING, COLD)
        elif self._stuck >= PATIENCE:
            self._heat, self._stuck = min(self._heat * REHEATING, 0.8 * HOT), 0

    def _proposed(self) -> Candidate | None:
        space = self.inner.study.space
        if self._told <= RANDOM or self._here is None:
            found = space.sample(self._rng)
            return None if isinstance(found, RuledOut) else found
        params = dict(self._here[0])
        share = min(1.0, self._told / MOST)
        structural = self._rng.random() < STRUCTURAL[0] + (STRUCTURAL[1] - STRUCTURAL[0]) * share
        choices = [p for p in space.dimensions if isinstance(p.domain, Choice)]
        numbers = [p for p in space.dimensions if not isinstance(p.domain, Choice)]
        changed = numbers if numbers and not (structural and choices) else [self._rng.choice(choices)]
        params |= {parameter.name: self._stepped(parameter, params[parameter.name]) for parameter in changed}
        return candidate_in(space, params)

    def _stepped(self, parameter: Parameter, value: ParamValue) -> ParamValue:
        domain = parameter.domain
        if isinstance(domain, Choice):
            return self._rng.choice(domain.values)
        low, high = float(domain.low), float(domain.high)
        step = self._rng.gauss(0.0, SPREAD * max(self._heat, 0.1))
        moved = float(value) * float((high / low) ** step) if domain.log else float(value) + (high - low) * step
        if isinstance(domain, FloatRange):
            grid = domain.step or 0.01
            moved = round(round(moved / grid) * grid, 9)
        moved = min(max(moved, low), high)
        return moved if isinstance(domain, FloatRange) else round(moved)
