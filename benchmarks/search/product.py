"""The product's own search as a strategy: `autotune.search.study.Search` behind its gate, driven as a study drives it.

Its sampler is the study file's, `auto` unless told otherwise; what the gate excludes is told, and costs nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from autotune.records.spec import BudgetSpec, SamplerSpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase, Role, TrialRecord
from autotune.search.gate import Exclusion, Gate, Source
from autotune.search.study import Proposal, Search
from benchmarks.search.asking import gate_of
from benchmarks.search.protocol import Study
from benchmarks.search.records import ruled_out

IN_MEMORY = "sqlite:///:memory:"


@dataclass(slots=True, kw_only=True)
class ProductSession:
    """Follows `protocol.Session`."""

    search: Search
    gate: Gate
    study: Study
    _number: int | None = None  # of the proposal that is out

    def ask(self) -> Candidate | None:
        """Return the next candidate that is worth a launch; None when the search finds none."""
        while (proposal := self.search.ask()) is not None:
            exclusion = self._exclusion(proposal)
            if exclusion is None:
                self._number = proposal.number
                return proposal.candidate
            nothing = Candidate(params=proposal.params, args=proposal.params, role=Role.SEARCH, fingerprint="")
            candidate = proposal.candidate or nothing
            self._learn(ruled_out(self.study.spec, candidate, exclusion, proposal.number))
        return None

    def tell(self, record: TrialRecord) -> None:
        """Learn from a launch; its number is the search's own."""
        number = self.search.next_number if self._number is None else self._number
        self._number = None
        self._learn(replace(record, number=number))

    def _learn(self, record: TrialRecord) -> None:
        self.gate.ran(record)
        self.search.tell(record)

    def _exclusion(self, proposal: Proposal) -> Exclusion | None:
        if proposal.candidate is not None:
            return self.gate.exclude(proposal.candidate.args)
        failure = Failure(
            outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=proposal.refusal or ""
        )
        return Exclusion(source=Source.SPACE, failure=failure)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """The strategy. `sampler`: what the study file names."""

    sampler: SamplerSpec = field(default_factory=SamplerSpec)

    def __call__(self, study: Study) -> ProductSession:
        spec = replace(study.spec, sampler=self.sampler, budget=BudgetSpec(trials=study.launches), storage=None)
        return ProductSession(
            search=Search(spec, study.space, IN_MEMORY),
            gate=gate_of(study),
            study=replace(study, spec=spec),
        )
