"""Whose turn it is among several engines: none is starved, and one that can't be launched takes no trials of others.

The engine is a parameter like any other, and the sampler chooses it, within two bounds. An engine that has fallen
behind its share is due, whatever the sampler thinks of it: a comparison needs a fair try of each. An engine of which
nothing ran, nothing may run or nothing is left is out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from autotune.records.trial import Outcome, TrialRecord

FAIR_SHARE = 0.8
"""Of an equal share of the launches, so much each engine gets at least. Of two, neither is then launched more than 1.5
times as often as the other, which is where `autotune compare` begins to speak of unequal effort."""

DOOMED_LAUNCHES = 4
"""So many launches of which none was measured (the reference and what stood in for it included) end a candidature."""

REFUSALS_PER_TRIAL = 20  # refused proposals cost nothing, but a space of which nearly nothing is allowed must end
DUPLICATES_IN_A_ROW = 100  # so many repeats in a row mean that the space has been tried


@dataclass(slots=True, kw_only=True)
class Turns:
    """Counts what became of each engine's proposals; `engines` is (None,) of a single one. `trials`: the budget."""

    engines: tuple[str | None, ...]
    trials: int
    _records: dict[str | None, list[TrialRecord]] = field(default_factory=dict)
    _repeats: Counter[str | None] = field(default_factory=Counter)

    def note(self, record: TrialRecord) -> None:
        """Take note of a finished trial of the search."""
        self._records.setdefault(record.engine, []).append(record)

    def repeated(self, engine: str | None) -> None:
        """Take note of a proposal that had been launched before."""
        self._repeats[engine] += 1

    def proposed(self, engine: str | None) -> None:
        """Take note of a proposal that is new."""
        self._repeats[engine] = 0

    @property
    def running(self) -> tuple[str | None, ...]:
        """The engines that still take part."""
        return tuple(engine for engine in self.engines if self.why_out(engine) is None)

    @property
    def due(self) -> str | None:
        """The engine that must be proposed next; None where the sampler may choose (or there is but one engine)."""
        running = self.running
        if not running:
            return None
        counts = {engine: len(launched(self._records.get(engine, ()))) for engine in self.engines}
        behind = min(running, key=lambda engine: counts[engine])
        if len(running) < len(self.engines):
            return behind
        share = FAIR_SHARE * (sum(counts.values()) + 1) / len(self.engines)
        return behind if counts[behind] < min(share, max(counts.values())) else None

    def why_out(self, engine: str | None) -> str | None:
        """Why an engine is proposed no more; None while it is."""
        records = self._records.get(engine, ())
        if len(self.engines) > 1 and (doom := doomed(records)):
            return doom
        if self.refused(engine) * len(self.engines) >= REFUSALS_PER_TRIAL * self.trials:
            return f"{self.refused(engine)} proposals were ruled out before a launch"
        if self._repeats[engine] >= DUPLICATES_IN_A_ROW:
            return "every configuration that the sampler finds has been launched"
        return None

    def refused(self, engine: str | None) -> int:
        """How many of an engine's proposals were ruled out."""
        return sum(record.outcome is Outcome.RULED_OUT for record in self._records.get(engine, ()))

    @property
    def why_over(self) -> str | None:
        """Why no engine takes part any more; None while one does."""
        if self.running:
            return None
        if len(self.engines) == 1:
            return self.why_out(self.engines[0])
        return "; ".join(f"{engine}: {self.why_out(engine)}" for engine in self.engines)


def launched(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the launches of a search."""
    return [record for record in records if record.outcome is not Outcome.RULED_OUT and record.final is None]


def doomed(records: Sequence[TrialRecord]) -> str | None:
    """Why an engine with these records is tried no more beside others; None while it may well run."""
    tried = launched(records)
    if len(tried) < DOOMED_LAUNCHES or any(record.outcome.measured for record in tried):
        return None
    failure = tried[-1].failure
    cause = failure.cause.strip().splitlines()[-1] if failure and failure.cause.strip() else tried[-1].outcome.value
    return f"given up: none of its {len(tried)} launches could be measured; the last: {cause}"
