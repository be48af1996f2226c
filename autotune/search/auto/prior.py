"""What a prior says of a candidate before it is launched, and the seam at which another one can stand."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from autotune.records.spec import Args
from autotune.records.trial import TrialRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction:
    """`objective` in the metric's unit, right but for a factor that is the same for all candidates; None: unknown.

    `excess`: by SLO, (value - limit) / limit, shortfall for floors; an SLO that can't be predicted is left out.
    `margins`: shares of a GPU's memory that are left for the KV cache beyond one longest request, and outside of
    vLLM's budget; None where memory isn't modelled. `startup_s`: by what it loads and compiles, and what it takes when
    a launch of the same `compiled` came before.
    """

    objective: float | None
    excess: Mapping[str, float] = field(default_factory=dict)
    margins: tuple[float, float] | None = None
    startup_s: float | None = None
    warm_startup_s: float | None = None
    compiled: Hashable = None


class Prior(Protocol):
    """Predicts candidates by their engine arguments."""

    @property
    def version(self) -> int:
        """Changes when predictions do: those made before are then made again."""
        ...

    def predict(self, args: Args) -> Prediction | None:
        """Return what `args` would come to; None when nothing can be said of them."""
        ...

    def learn(self, record: TrialRecord) -> None:
        """Take note of a trial of the study; every one is told once, in the order in which they ended."""
        ...
