"""Priors that are wrong on purpose: what `auto` costs where its simulator says nothing true about speed."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, replace

import numpy as np

from autotune.records.spec import Args
from autotune.records.trial import TrialRecord
from autotune.search.auto import Prediction, Prior
from benchmarks.search.truth import seed_of


@dataclass(slots=True, kw_only=True)
class InvertedPrior:
    """The best is said to be the worst: logarithms of the objective change their sign, excesses theirs. What is said of
    memory stays."""

    inner: Prior
    scale: float = 1.0

    @property
    def version(self) -> int:
        return self.inner.version

    def predict(self, args: Args) -> Prediction | None:
        found = self.inner.predict(args)
        if found is None or found.objective is None:
            return found
        inverted = self.scale**2 / max(found.objective, 1e-3 * self.scale)
        return replace(found, objective=inverted, excess={name: -x for name, x in found.excess.items()})

    def learn(self, record: TrialRecord) -> None:
        self.inner.learn(record)


@dataclass(slots=True, kw_only=True)
class RandomPrior:
    """A number drawn for each configuration, with no relation to anything; what is said of memory stays."""

    inner: Prior
    seed: int

    @property
    def version(self) -> int:
        return 0

    def predict(self, args: Args) -> Prediction | None:
        found = self.inner.predict(args)
        if found is None or found.objective is None:
            return found
        rng = np.random.default_rng(seed_of(self.seed, json.dumps(dict(args), sort_keys=True, default=str)))
        excess = {name: float(rng.normal(0.0, 0.5)) for name in found.excess}
        return replace(found, objective=math.exp(rng.normal()), excess=excess)

    def learn(self, record: TrialRecord) -> None:
        """Nothing that is learned is used."""
