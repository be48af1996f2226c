"""Gaussian processes with given hyper-parameters: numpy and nothing else, some hundred points at most."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

NOISE = 0.045
"""Standard deviation of ln(measured): launches of one configuration differ by 3 %, and no model is smooth to the last
per cent."""
JITTER = 1e-9
_erf = np.frompyfunc(math.erf, 1, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kernel:
    """Matern 5/2 of amplitude `amplitude` over scaled axes, `split` for what differs between structures (halved by e
    with each structural axis that differs), and `offset` for a level that is unknown altogether."""

    amplitude: float
    split: float = 0.0
    offset: float = 0.5

    @property
    def variance(self) -> float:
        """The variance of a single value."""
        return self.amplitude**2 + self.split**2 + self.offset**2

    def between(self, apart: Floats, structures: Floats) -> Floats:
        """Return covariances from scaled distances and numbers of structural axes that differ."""
        root = math.sqrt(5.0) * apart
        smooth: Floats = self.amplitude**2 * (1 + root + root**2 / 3) * np.exp(-root)
        if self.split:
            smooth = smooth + self.split**2 * np.exp(-structures)
        return smooth + self.offset**2


def distances(a: Floats, b: Floats, scales: Floats) -> Floats:
    """Return the scaled Euclidean distances of all rows of `a` to all of `b`."""
    left, right = a / scales, b / scales
    squares = (left**2).sum(1)[:, None] + (right**2).sum(1)[None, :] - 2 * left @ right.T
    found: Floats = np.sqrt(np.maximum(squares, 0.0))
    return found


def structures_apart(a: Floats, b: Floats, structural: Bools) -> Floats:
    """Return on how many structural axes rows differ."""
    apart = np.abs(a[:, None, structural] - b[None, :, structural]) > 1e-9
    found: Floats = apart.sum(-1).astype(np.float64)
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Posterior:
    """Means, a row an output, and the standard deviation that they share; `evidence` is each output's log marginal
    likelihood."""

    mean: Floats
    deviation: Floats
    evidence: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Distances:
    """Those among measured points, and from each point asked about to each measured one."""

    measured: Floats
    measured_structures: Floats
    asked: Floats
    asked_structures: Floats


def posterior(kernel: Kernel, at: Distances, residuals: Floats, noise: float = NOISE) -> Posterior:
    """Condition a zero-mean process on `residuals`, a row an output. Points asked about may be measured ones."""
    count = residuals.shape[1]
    covariance = kernel.between(at.measured, at.measured_structures)
    lower = np.linalg.cholesky(covariance + (noise**2 + JITTER) * np.eye(count))
    half = np.linalg.solve(lower, residuals.T)  # count x outputs
    cross = np.linalg.solve(lower, kernel.between(at.asked, at.asked_structures).T)  # count x asked
    evidence = -0.5 * (half**2).sum(0) - np.log(np.diag(lower)).sum() - 0.5 * count * math.log(2 * math.pi)
    variance = kernel.variance - (cross**2).sum(0)
    return Posterior(mean=(cross.T @ half).T, deviation=np.sqrt(np.maximum(variance, 1e-8)), evidence=evidence)


def normal_cdf(z: Floats) -> Floats:
    """Return the share of a standard normal below `z`."""
    found: Floats = 0.5 * (1 + np.asarray(_erf(z / math.sqrt(2)), dtype=np.float64))
    return found


def expected_improvement(mean: Floats, deviation: Floats, best: float) -> Floats:
    """Return E[max(0, f - best)] of normal f."""
    z = (mean - best) / deviation
    density = np.exp(-0.5 * z**2) / math.sqrt(2 * math.pi)
    found: Floats = np.maximum(deviation * (z * normal_cdf(z) + density), 0.0)
    return found
