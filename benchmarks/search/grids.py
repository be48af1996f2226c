"""vLLM's own auto_tune: the largest gpu_memory_utilization that starts, then a grid of two parameters.

After `benchmarks/auto_tune/auto_tune.sh` of vLLM 0.10, with the lists that it ships.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product

from autotune.records.trial import Candidate, TrialRecord
from autotune.search.gate import Gate
from benchmarks.search.asking import start_of
from benchmarks.search.optima import candidate_in
from benchmarks.search.protocol import Study

SEQS, TOKENS = (128, 256), (512, 1024, 2048, 4096)
HIGHEST, LOWEST = 98, 90  # per cent of the memory, tried from above


@dataclass(slots=True, kw_only=True)
class GridSession:
    """Follows `protocol.Session`."""

    study: Study
    gate: Gate | None = None
    _runs: bool = False
    _plan: Iterator[Candidate] = field(init=False)

    def __post_init__(self) -> None:
        self._plan = self._candidates()

    def ask(self) -> Candidate | None:
        """Return the next of the grid; None at its end."""
        for candidate in self._plan:
            if self.gate is None or self.gate.exclude(candidate.args) is None:
                return candidate
        return None

    def tell(self, record: TrialRecord) -> None:
        """Note whether it ran."""
        self._runs = record.outcome.measured
        if self.gate is not None:
            self.gate.ran(record)

    def _candidates(self) -> Iterator[Candidate]:
        used = LOWEST
        for used in range(HIGHEST, LOWEST - 1, -1):
            self._runs = False
            yield from self._with(used, SEQS[-1], TOKENS[-1])
            if self._runs:
                break
        for seqs, tokens in product(SEQS, TOKENS):
            if (seqs, tokens) != (SEQS[-1], TOKENS[-1]):  # the script measures it once more
                yield from self._with(used, seqs, tokens)

    def _with(self, percent: int, seqs: int, tokens: int) -> Iterator[Candidate]:
        space = self.study.space
        widest = {p.name: p.domain.values[-1] for p in space.dimensions if p.name == "tensor_parallel_size"}  # type: ignore[union-attr]
        given = {"gpu_memory_utilization": percent / 100, "max_num_seqs": seqs, "max_num_batched_tokens": tokens}
        candidate = candidate_in(space, {**start_of(space), **widest, **given})
        if candidate is not None:
            yield candidate
