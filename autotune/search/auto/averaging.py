"""What is believed of a figure: an average over models that trust the simulator fully, by half, and not at all.

Each model is a Gaussian process on the logarithm of measured over predicted; its weight is its prior weight times the
likelihood of what was measured, so a simulator that is wrong loses its say within a few launches.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from autotune.search.auto.gaussian import (
    Distances,
    Kernel,
    Posterior,
    distances,
    expected_improvement,
    normal_cdf,
    posterior,
    structures_apart,
)

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """`trust`: how much of the prediction's logarithm is taken as the mean. `plain`: axes all matter alike, not by the
    simulator's sensitivities."""

    weight: float
    trust: float
    kernel: Kernel
    plain: bool = False


TRUSTING = (
    Model(weight=0.2, trust=1.0, kernel=Kernel(amplitude=0.08, split=0.35)),
    Model(weight=0.2, trust=1.0, kernel=Kernel(amplitude=0.2, split=0.4)),
    Model(weight=0.2, trust=1.0, kernel=Kernel(amplitude=0.5, split=0.5)),
    Model(weight=0.2, trust=1.0, kernel=Kernel(amplitude=1.0, split=0.7, offset=1.0)),
)
"""Sizes of the simulator's error, from a few per cent to no relation at all but in the way it varies."""

HALF = (Model(weight=0.08, trust=0.5, kernel=Kernel(amplitude=0.5, split=0.4)),)

FREE = (
    Model(weight=0.03, trust=0.0, kernel=Kernel(amplitude=0.25, split=0.2), plain=True),
    Model(weight=0.05, trust=0.0, kernel=Kernel(amplitude=0.6, split=0.4), plain=True),
    Model(weight=0.04, trust=0.0, kernel=Kernel(amplitude=1.0, split=0.7), plain=True),
)
"""Those that know nothing of the simulator, not even which parameters it says matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Points:
    """Places in the unit cube, and the logarithms predicted for each figure, a row a figure (NaN: none)."""

    features: Floats
    predicted: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How far apart places are: by the simulator's sensitivities, and by nothing."""

    scales: Floats
    plain_scales: Floats
    structural: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Belief:
    """One figure at every point asked about: a mean and a deviation a model, and the models' weights."""

    weights: Floats
    means: Floats
    deviations: Floats

    @property
    def mean(self) -> Floats:
        """The average of the models' means."""
        found: Floats = self.weights @ self.means
        return found

    def improvement(self, best: float) -> Floats:
        """Return the expected improvement over `best`."""
        parts = zip(self.weights, self.means, self.deviations, strict=True)
        found: Floats = np.sum([w * expected_improvement(mean, sd, best) for w, mean, sd in parts], axis=0)
        return found

    def below(self, limit: float) -> Floats:
        """Return the probability that the figure is at most `limit`."""
        parts = zip(self.weights, self.means, self.deviations, strict=True)
        found: Floats = np.sum([w * normal_cdf((limit - mean) / sd) for w, mean, sd in parts], axis=0)
        return found


def believe(
    measured: Points, values: Floats, asked: Points, shape: Shape, pending: Points | None = None
) -> list[Belief]:
    """Return a belief a figure. `values`: a row a figure, a column a measured point. Points that are `pending` count as
    measured at what each model expects of them, so that workers at the same time ask different things."""
    models = _models(measured.predicted)
    at = {plain: _distances(measured, asked, shape, plain=plain) for plain in {m.plain for m in models}}
    if pending is not None and len(pending.features):
        return _with_pending(models, measured, values, (asked, pending), shape)
    return _average(models, [_fit(model, at[model.plain], measured, values, asked) for model in models])


def _models(predicted: Floats) -> Sequence[Model]:
    return (*TRUSTING, *HALF, *FREE) if np.isfinite(predicted).any() else FREE


def _distances(measured: Points, asked: Points, shape: Shape, *, plain: bool) -> Distances:
    scales = shape.plain_scales if plain else shape.scales
    a, b = measured.features, asked.features
    return Distances(
        measured=distances(a, a, scales),
        measured_structures=structures_apart(a, a, shape.structural),
        asked=distances(b, a, scales),
        asked_structures=structures_apart(b, a, shape.structural),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    model: Model
    posterior: Posterior
    mean: Floats


def _fit(model: Model, at: Distances, measured: Points, values: Floats, asked: Points) -> _Fitted:
    """The level of measured over predicted is not the shape's business: it is taken out first."""
    trusted = model.trust * _filled(measured.predicted)
    level = (values - trusted).mean(axis=1, keepdims=True)
    found = posterior(model.kernel, at, values - trusted - level)
    base = model.trust * _filled(asked.predicted, measured.predicted) + level
    return _Fitted(model=model, posterior=found, mean=base + found.mean)


def _filled(predicted: Floats, measured: Floats | None = None) -> Floats:
    """Where nothing is predicted, the mean of what is: nothing is said for or against such a candidate."""
    source = predicted if measured is None or not np.isfinite(measured).any() else measured
    known = np.isfinite(source)
    level = np.where(known, source, 0.0).sum(1) / np.maximum(known.sum(1), 1)
    return np.where(np.isfinite(predicted), predicted, level[:, None])


def _average(models: Sequence[Model], fitted: Sequence[_Fitted]) -> list[Belief]:
    beliefs = []
    for row in range(len(fitted[0].mean)):
        logs = np.array([math.log(m.weight) + f.posterior.evidence[row] for m, f in zip(models, fitted, strict=True)])
        weights = np.exp(logs - logs.max())
        beliefs.append(
            Belief(
                weights=weights / weights.sum(),
                means=np.array([f.mean[row] for f in fitted]),
                deviations=np.array([f.posterior.deviation for f in fitted]),
            )
        )
    return beliefs


def _with_pending(
    models: Sequence[Model], measured: Points, values: Floats, asked_pending: tuple[Points, Points], shape: Shape
) -> list[Belief]:
    """Each model's own expectation of what runs stands in for its outcome; the weights are those without it."""
    asked, pending = asked_pending
    fitted, evidence = [], []
    joined = Points(
        features=np.vstack([measured.features, pending.features]),
        predicted=np.hstack([measured.predicted, pending.predicted]),
    )
    for model in models:
        first = _fit(model, _distances(measured, pending, shape, plain=model.plain), measured, values, pending)
        evidence.append(first.posterior)
        all_values = np.hstack([values, first.mean])
        fitted.append(_fit(model, _distances(joined, asked, shape, plain=model.plain), joined, all_values, asked))
    weighed = [
        _Fitted(
            model=f.model,
            mean=f.mean,
            posterior=Posterior(mean=f.posterior.mean, deviation=f.posterior.deviation, evidence=e.evidence),
        )
        for f, e in zip(fitted, evidence, strict=True)
    ]
    return _average(models, weighed)
