"""Where a twin's limits hold in the long run: tens of thousands of requests like those that were measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import ceil, exp, floor, inf, log

import numpy as np

from autotune.models.observed import Latencies, timeline_of
from autotune.models.simulation import Trace
from autotune.models.twin import Twin, mean_limited, modelled
from autotune.records.metrics import parse_metric
from autotune.records.spec import Slo

ROUGH, FINE = 12_000, 60_000
"""Requests: one trace of 12,000 near a p99 is good for 4 % of rate, of 60,000 for 2 % (violations come in bursts)."""
WARM = 0.03  # share of a trace before its queue is what it will be
KNOT = 0.04  # of ln(pace): capacity is found at these and interpolated between
TOLERANCE = 0.005  # of ln(rate)
STRIDE, LONGER = 0.08, 2.0  # of ln(rate), while looking for both sides


@dataclass(slots=True)
class Stationary:
    """The capacity of one twin by its two factors. `population` are requests to draw from, their times ignored.

    `closed`: clients of a closed loop rather than requests a second. `bounds`: loads beyond which nobody asks.
    """

    twin: Twin
    population: Trace
    slos: tuple[Slo, ...]
    closed: bool = False
    guess: float = 1.0
    bounds: tuple[float, float] = (1e-3, 1e5)
    requests: int = ROUGH
    seed: int = 0
    _trace: Trace | None = None
    _knots: dict[tuple[int, float], float] = field(default_factory=dict)

    def capacity(self, pace: float, compute: float = 1.0) -> float:
        """The highest load at which all modelled SLOs hold; 0 where none does."""
        knot = log(pace) / KNOT
        below, above = floor(knot), ceil(knot)
        if below == above:
            return self._at(below, compute)
        lower, upper = self._at(below, compute), self._at(above, compute)
        if not lower or not upper:
            return min(lower, upper)
        return exp(log(lower) + (knot - below) * log(upper / lower))

    def _at(self, knot: int, compute: float) -> float:
        key = knot, compute
        if key not in self._knots:
            if any(told == 0 and other <= knot and c == compute for (other, c), told in self._knots.items()):
                return 0.0  # a slower twin holds no more
            near = min(self._knots, key=lambda k: (abs(k[1] - compute), abs(k[0] - knot)), default=None)
            guess = self._knots[near] * exp(KNOT * (near[0] - knot)) if near is not None else 0.0
            twin = replace(self.twin, pace=exp(knot * KNOT), compute=compute)
            least, most = self.bounds
            strain = partial(self._strain, twin)
            self._knots[key] = root(strain, guess or self.guess, least=least, most=most)
        return self._knots[key]

    def _strain(self, twin: Twin, load: float) -> float:
        if not self.closed:
            return self.strain(twin, load)
        lower = floor(load)
        low, high = (log(max(self.strain(twin, max(1, clients)), 1e-9)) for clients in (lower, lower + 1))
        return exp(low + (load - lower) * (high - low))

    def strain(self, twin: Twin, load: float) -> float:
        """How much of what the SLOs allow is used up at a load, by the worst of them: 1 at capacity."""
        trace = self._long()
        clients = int(load) if self.closed else None
        trace = trace if self.closed else replace(trace, arrival_s=trace.arrival_s / load)
        end_s = inf if self.closed else float(trace.arrival_s[-1])
        result = twin.run(trace, concurrency=clients, end_s=min(end_s, 1e18))
        counted = np.arange(result.issued) >= WARM * result.issued
        found = timeline_of(result).latencies(counted, result.end_s if self.closed else end_s)
        return max((_strain_of(slo, found) for slo in self.slos if modelled(slo)), default=0.0)

    def _long(self) -> Trace:
        if self._trace is None:
            self._trace = resampled(self.population, self.requests, self.seed)
        return self._trace


def resampled(population: Trace, count: int, seed: int) -> Trace:
    """Draw `count` requests with replacement, arriving once a second on average (Poisson)."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(len(population.prompt_tokens), size=count)
    return Trace(
        arrival_s=np.cumsum(rng.exponential(size=count)),
        prompt_tokens=population.prompt_tokens[drawn],
        output_tokens=population.output_tokens[drawn],
        prefix_group=population.prefix_group[drawn],
        prefix_tokens=population.prefix_tokens[drawn],
    )


def pooled(traces: Sequence[Trace]) -> Trace:
    """The requests of several traces as one population."""
    names = ("arrival_s", "prompt_tokens", "output_tokens", "prefix_group", "prefix_tokens")
    return Trace(**{name: np.concatenate([getattr(trace, name) for trace in traces]) for name in names})


def _strain_of(slo: Slo, found: Latencies) -> float:
    metric = parse_metric(slo.metric)
    assert metric is not None  # noqa: S101 - `modelled` says so
    values = found.of(metric.base)
    if not len(values):
        return inf
    if mean_limited(slo):
        return float(values.mean()) / slo.limit
    share = (np.count_nonzero(values > slo.limit) + 0.5) / (len(values) + 1)  # never 0, so that its log has a slope
    return float(share / (1 - (metric.quantile or 0.0)))


def root(strain: Callable[[float], float], guess: float, *, least: float = 1e-3, most: float = 1e5) -> float:
    """The load at which a rising `strain` is 1: both sides by strides, then false position on logarithms, kept off the
    ends of the bracket. 0 when it exceeds 1 at `least` already, `most` when it never does."""
    at = log(min(max(guess, least), most))
    here = _log(strain(exp(at)))
    stride = STRIDE
    other, there = at, here
    while (here > 0) == (there > 0):
        at, here = other, there
        if here > 0 and at <= log(least):
            return 0.0
        if here <= 0 and at >= log(most):
            return most
        other = min(max(at - stride if here > 0 else at + stride, log(least)), log(most))
        there = _log(strain(exp(other)))
        stride *= LONGER
    (low, under), (high, over) = sorted([(at, here), (other, there)])
    while high - low > TOLERANCE:
        share = min(max(-under / (over - under), 0.1), 0.9)
        middle = low + share * (high - low)
        value = _log(strain(exp(middle)))
        low, under, high, over = (low, under, middle, value) if value > 0 else (middle, value, high, over)
        if abs(value) < TOLERANCE:
            return exp(middle)
    return exp((low + high) / 2)


def _log(value: float) -> float:
    return min(max(log(max(value, 1e-12)), -6.0), 6.0)
