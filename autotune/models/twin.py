"""The capacity twin: the scheduler model of one launched engine, slowed down or sped up until it does what that does.

One factor on all of its times (`pace`) is fitted on the very requests of the measured levels, so that luck with the
requests cancels out; where that can't explain body and tail alike, a second one on what a computed token costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from math import exp, log

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import SchedulerConfig
from autotune.models.observed import BASES, Latencies, ObservedLevel
from autotune.models.shapes import GpuSpec
from autotune.models.simulation import NEVER_S, SimResult, Trace, simulate
from autotune.models.steptime import HOST, HostCosts
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Bound, Slo

Floats = NDArray[np.float64]

QUANTILES = (0.5, 0.9, 0.97, 0.99)
BODY, TAIL, MATCHED = (0, 1), (2, 3), (1, 2, 3)
"""Which of them are matched: the body and the tail apart to tell whether the twin is right, p90 to p99 to fit it."""

NEAR = 0.35
"""A level weighs e times less with each ln(metric / limit) of this size: what happens far from the limit says little
about where it is crossed."""
UNLIMITED = 0.3  # weight of a latency that no SLO limits
SATURATES = 0.5  # |ln ratio| at which a quantile has half of the weight that it can have at all
HOPELESS = 5.0  # |ln ratio| of a latency that the twin never comes to have
STEPS = (0.16, 0.04, 0.01)  # of ln(pace), from coarse to fine
WIDE, NARROW = 30, 4  # steps to each side: a factor of 120 for an unknown machine, then 1.9 and less
COMPUTE = tuple(exp(0.5 * i) for i in range(-3, 4))  # per-token cost over fixed cost, beside the model's own


@dataclass(frozen=True, slots=True, kw_only=True)
class Twin:
    """A launched engine's scheduler. `pace` multiplies every time, `compute` moreover those per computed token."""

    config: SchedulerConfig
    blocks: int
    host: HostCosts = HOST
    pace: float = 1.0
    compute: float = 1.0

    def run(
        self, trace: Trace, *, concurrency: int | None = None, last_start_s: float = NEVER_S, end_s: float = NEVER_S
    ) -> SimResult:
        """Simulate `trace`; no noise: what differs from the engine's own is left to the fit."""
        return simulate(
            trace,
            replace(self.config, gpu=_slowed(self.config.gpu, self.pace, self.pace * self.compute)),
            concurrency=concurrency,
            last_start_s=last_start_s,
            end_s=end_s,
            blocks=self.blocks,
            host=HostCosts(**{each.name: getattr(self.host, each.name) * self.pace for each in fields(HostCosts)}),
        )

    def replay(self, level: ObservedLevel) -> Latencies:
        """The latencies that the twin has under the requests of a measured level."""
        last_start_s = level.window_s[1] if level.concurrency is not None else NEVER_S
        result = self.run(level.trace, concurrency=level.concurrency, last_start_s=last_start_s, end_s=level.end_s)
        return level.replayed(result)

    def fits(self, trace: Trace) -> bool:
        """Whether the engine takes every request of the trace."""
        return int(np.max(trace.prompt_tokens + trace.output_tokens, initial=0)) <= self.config.max_model_len


def modelled(slo: Slo) -> bool:
    """Whether the twin can tell where this SLO is crossed: an upper bound on a latency of whole requests."""
    metric = parse_metric(slo.metric)
    return metric is not None and slo.bound is Bound.MAX and metric.base in BASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """A fitted twin. `residual` is the weighted mean of |ln(simulated p99 / measured p99)| of the latencies that count
    most."""

    twin: Twin
    cost: float
    residual: float


@dataclass(slots=True)
class Fitter:
    """Fits a twin to levels and remembers every simulation, since fits of body, tail and single levels share them."""

    twin: Twin
    slos: tuple[Slo, ...]
    begin: float = 0.0  # ln(pace) around which the first fit looks
    levels: list[ObservedLevel] = field(default_factory=list)
    _told: dict[tuple[int, float, float], Floats] = field(default_factory=dict)
    _seen: list[Floats] = field(default_factory=list)
    _weights: list[Floats] = field(default_factory=list)
    _last: float | None = None  # ln(pace) of the fit before, where the next one begins

    def add(self, level: ObservedLevel) -> None:
        """Take note of a measured level."""
        self.levels.append(level)
        self._seen.append(_table(level.seen))
        self._weights.append(_weights(level, self._seen[-1], self.slos))

    def fit(
        self, matched: Sequence[int] = MATCHED, *, compute: float = 1.0, among: Sequence[int] | None = None
    ) -> Match:
        """Return the pace that makes the `matched` QUANTILES of the levels (`among` them: indices) agree best."""
        chosen = range(len(self.levels)) if among is None else among
        centre, width = (self.begin, WIDE) if self._last is None else (self._last, NARROW)
        for step in STEPS:
            at = [(round(centre / step) + i) * step for i in range(-width, width + 1)]
            costs = [self._cost(z, compute, matched, chosen) for z in at]
            centre, width = at[int(np.argmin(costs))], NARROW
        if compute == 1.0:
            self._last = centre
        return self._match(centre, compute, matched, chosen)

    def fit_both(self, matched: Sequence[int] = MATCHED) -> Match:
        """Return the best fit with both factors free."""
        return min((self.fit(matched, compute=compute) for compute in COMPUTE), key=lambda match: match.cost)

    def _match(self, z: float, compute: float, matched: Sequence[int], among: Sequence[int]) -> Match:
        twin = replace(self.twin, pace=exp(z), compute=compute)
        cost = self._cost(z, compute, matched, among)
        return Match(twin=twin, cost=cost, residual=self._residual(z, compute, among))

    def _cost(self, z: float, compute: float, matched: Sequence[int], among: Sequence[int]) -> float:
        """Weighted sum of saturating |ln ratio|: a latency that is far off can't outvote those that fit."""
        total = 0.0
        for index in among:
            apart = np.abs(self._apart(index, z, compute))[:, list(matched)]
            total += float(np.sum(self._weights[index][:, None] * apart / (SATURATES + apart)))
        return total

    def _residual(self, z: float, compute: float, among: Sequence[int]) -> float:
        apart = np.array([self._apart(index, z, compute)[:, -1] for index in among])
        weights = np.array([self._weights[index] for index in among])
        if not weights.sum():
            return 0.0
        # By latency and over levels: one that is always too slow is a wrong twin, scatter around nothing is not.
        mean = np.sum(weights * apart, axis=0) / np.maximum(weights.sum(axis=0), 1e-12)
        binding = weights.sum(axis=0) >= 0.3 * weights.sum(axis=0).max()
        return float(np.abs(mean[binding]).max())

    def _apart(self, index: int, z: float, compute: float) -> Floats:
        """ln(simulated / measured), a row a latency of BASES, a column a quantile."""
        key = index, round(z, 6), compute
        if key not in self._told:
            twin = replace(self.twin, pace=exp(z), compute=compute)
            self._told[key] = _table(twin.replay(self.levels[index]))
        seen = self._seen[index]
        apart: Floats = np.where(np.isnan(seen), 0.0, np.nan_to_num(self._told[key] - seen, nan=HOPELESS))
        return apart


def _table(latencies: Latencies) -> Floats:
    """ln of QUANTILES, a row a latency."""
    return np.log(np.maximum([latencies.quantiles(base, QUANTILES) for base in BASES], 1e-3))


def _weights(level: ObservedLevel, seen: Floats, slos: Sequence[Slo]) -> Floats:
    """A weight a latency of BASES: by the level's samples, and by how near its limit it is."""
    limits = [_limit(base, slos) for base in BASES]
    over = np.array(
        [np.nan if limit is None else row[-1] - log(limit) for limit, row in zip(limits, seen, strict=True)]
    )
    if np.isnan(over).all():
        return np.zeros(len(BASES))
    worst = float(np.nanmax(over))
    near = np.where(np.isnan(over), UNLIMITED, np.exp((over - worst) / NEAR))
    near[BASES.index("e2e_ms")] *= 0.0 if limits[BASES.index("e2e_ms")] is None else 1.0
    weights: Floats = len(level.seen.ttft_ms) ** 0.5 * exp(-abs(worst) / NEAR) * near
    return weights


def _limit(base: str, slos: Sequence[Slo]) -> float | None:
    """The tightest limit on a latency's quantiles or mean; None: not limited."""
    found = [slo.limit for slo in slos if modelled(slo) and slo.metric.startswith(f"{base}.")]
    return min(found, default=None)


def mean_limited(slo: Slo) -> bool:
    """Whether the SLO limits a mean rather than a quantile."""
    metric = parse_metric(slo.metric)
    return metric is not None and metric.kind is MetricKind.MEAN


def _slowed(gpu: GpuSpec, fixed: float, token: float) -> GpuSpec:
    """A GPU on which whatever a step costs takes `fixed` times as long, and each token computed `token` times."""
    return replace(
        gpu,
        bf16_flops=gpu.bf16_flops / token,
        fp8_flops=gpu.fp8_flops / token,
        link=gpu.link / token,
        bandwidth=gpu.bandwidth / fixed,
        layer_floor_us=gpu.layer_floor_us * fixed,
        layer_floor_fp8_us=gpu.layer_floor_fp8_us * fixed,
        allreduce_latency_us=gpu.allreduce_latency_us * fixed,
    )
