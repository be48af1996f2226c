"""A simulated engine under the study's traffic, in the metrics that objective and SLOs name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import SchedulerConfig
from autotune.models.observed import Latencies, timeline_of
from autotune.models.simulation import NEVER_S, Limit, SimResult, simulate
from autotune.models.steptime import HostCosts
from autotune.records.metrics import MetricKind, parse_metric
from autotune.records.spec import Bound, ObjectiveSpec, Slo
from autotune.search.auto.traffic import Traffic

Floats = NDArray[np.float64]

TOKENS_RATE = ("output_tok_per_s", "total_tok_per_s")
DECODE_STEP = "tpot_ms"  # stands in for ITL, whose tail a simulation without the network's and client's own lacks
RESOLUTION = 0.025  # of ln(load) to which a capacity is found: what equal launches differ by
TOP_STEP = 0.05  # so near the top of the bracket, it may lie beyond
SPAN = 1_000.0  # highest over lowest load where the study bounds neither
WORTH, BEYOND = 5.0, 2.0  # of the best so far: below a fifth nothing is worth knowing, few lie above twice of it
WORST_EXCESS = 50.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """A configuration with the constants of its machine, and the KV blocks that it has."""

    config: SchedulerConfig
    host: HostCosts
    blocks: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What a level came to: latencies of the requests that count, and rates over the window they were sent in."""

    latencies: Latencies
    output_tok_per_s: float
    total_tok_per_s: float
    request_rps: float
    good_ratio: float

    def value(self, metric: str) -> float | None:
        """Return a metric; None for those that are not simulated. Costs are right but for a factor."""
        parsed = parse_metric(metric)
        if parsed is None:
            return None
        if parsed.kind in (MetricKind.QUANTILE, MetricKind.MEAN):
            values = self.latencies.of(DECODE_STEP if parsed.base == "itl_ms" else parsed.base)
            if not len(values):
                return None
            return float(values.mean() if parsed.quantile is None else np.quantile(values, parsed.quantile))
        return self._rate(metric.removesuffix("_per_gpu"))

    def _rate(self, metric: str) -> float | None:
        good_rps = self.request_rps * self.good_ratio
        rates = {
            "output_tok_per_s": self.output_tok_per_s,
            "total_tok_per_s": self.total_tok_per_s,
            "request_rps": self.request_rps,
            "goodput_rps": good_rps,
            "usd_per_million_output_tok": 1 / max(self.output_tok_per_s, 1e-9),
            "energy_wh_per_million_output_tok": 1 / max(self.output_tok_per_s, 1e-9),
            "usd_per_useful_response": 1 / max(good_rps, 1e-9),
        }
        return rates.get(metric)


def level(
    machine: Machine, traffic: Traffic, slos: tuple[Slo, ...], factor: float = 1.0, limit: Limit | None = None
) -> Figures | None:
    """Simulate one level, `factor` times as many requests a second or clients; None when the engine takes no request
    of it, none that counts ended, or more are sure to miss than `limit` allows."""
    result = _run(machine, traffic, factor, limit)
    if result.stuck or (limit is not None and result.missed > limit.allowed):
        return None
    sent_s, finish_s = result.sent_s[: result.issued], result.finish_s[: result.issued]
    begin_s, end_s = _window(traffic, sent_s, finish_s, factor)
    counted = (sent_s >= begin_s) & (sent_s < end_s)
    ended = (finish_s >= begin_s) & (finish_s < end_s)
    if end_s <= begin_s or not counted.any() or not ended.any():
        return None
    tokens = result.output_tokens[: result.issued][ended].sum() / (end_s - begin_s)
    prompts = result.prompt_tokens[: result.issued][ended].sum() / (end_s - begin_s)
    latencies = timeline_of(result).latencies(counted, NEVER_S if traffic.concurrency else end_s)
    return Figures(
        latencies=latencies,
        output_tok_per_s=float(tokens),
        total_tok_per_s=float(tokens + prompts),
        request_rps=float(ended.sum() / (end_s - begin_s)),
        good_ratio=_good(latencies, slos),
    )


def _run(machine: Machine, traffic: Traffic, factor: float, limit: Limit | None) -> SimResult:
    clients = None if traffic.concurrency is None else max(1, round(traffic.concurrency * factor))
    trace = traffic.trace if clients else traffic.trace.at_rate(factor)
    fits = trace.prompt_tokens + trace.output_tokens <= machine.config.max_model_len
    if not fits.all():
        names = ("arrival_s", "prompt_tokens", "output_tokens", "prefix_group", "prefix_tokens")
        trace = replace(trace, **{name: getattr(trace, name)[fits] for name in names})
    return simulate(trace, machine.config, concurrency=clients, blocks=machine.blocks, host=machine.host, limit=limit)


def _window(traffic: Traffic, sent_s: Floats, finish_s: Floats, factor: float) -> tuple[float, float]:
    """A closed loop counts once its first batch has left, until nobody sends any more; an open one after warm-up."""
    last_s = float(sent_s[-1]) if len(sent_s) else 0.0
    if traffic.concurrency is None:
        return traffic.begin_s / factor, last_s
    clients = min(max(1, round(traffic.concurrency * factor)), len(finish_s) // 2)
    filled_s = np.sort(finish_s)[max(0, clients // 2)] if len(finish_s) else np.inf
    return float(filled_s), last_s


def _good(latencies: Latencies, slos: tuple[Slo, ...]) -> float:
    """The least share of requests within a latency's limit: an upper bound on those within all of them."""
    shares = [1.0]
    for slo in slos:
        metric = parse_metric(slo.metric)
        if metric is not None and metric.base in ("ttft_ms", "tpot_ms", "e2e_ms") and slo.bound is Bound.MAX:
            values = latencies.of(metric.base)
            shares += [float((values <= slo.limit).mean())] if len(values) else []
    return min(shares)


def excess_of(figures: Figures, slo: Slo) -> float | None:
    """Return the relative excess over an SLO's limit; None where the metric isn't simulated."""
    value = figures.value(slo.metric)
    if value is None or not slo.limit:
        return None
    excess = (value - slo.limit) / slo.limit
    return min(excess if slo.bound is Bound.MAX else -excess, WORST_EXCESS)


def excesses(figures: Figures, slos: tuple[Slo, ...]) -> Mapping[str, float]:
    """Return the excesses that can be told, by metric."""
    found = {slo.metric: excess_of(figures, slo) for slo in slos}
    return {name: value for name, value in found.items() if value is not None}


def capacity(machine: Machine, traffic: Traffic, objective: ObjectiveSpec, best: float = 0.0) -> float:
    """Return the highest load that holds every SLO that can be simulated, in the load's own unit; 0 where none does.

    `best`: of the candidates seen so far. What holds less than a WORTH-th of it is not worth the exact value, and the
    lowest loads take the longest to simulate: half of that is returned.
    """
    asked = objective.load.capacity
    own = float(traffic.concurrency or traffic.rps or 1.0)
    low = (asked.low if asked and asked.low else 1.0 if traffic.concurrency else 0.02) / own
    high = (asked.high if asked and asked.high else low * own * SPAN) / own
    if traffic.concurrency:
        high = min(high, len(traffic.trace.prompt_tokens) / 2 / own)
    limit = _limit(objective.slos, len(traffic.trace.prompt_tokens))

    def holds(factor: float) -> bool:
        figures = level(machine, traffic, objective.slos, factor, limit)
        return figures is not None and all(x <= 0 for x in excesses(figures, objective.slos).values())

    worth, beyond = max(low, best / own / WORTH), min(high, best * BEYOND / own) if best else high
    found = _bisected(holds, worth, beyond)
    if found >= beyond * (1 - TOP_STEP) and beyond < high:
        found = _bisected(holds, beyond, high) or found
    return own * (found or (worth / 2 if worth > low else 0.0))


def _bisected(holds: Callable[[float], bool], low: float, high: float) -> float:
    bottom, top = math.log(low), math.log(high)
    while top - bottom > RESOLUTION:
        middle = (bottom + top) / 2
        bottom, top = (middle, top) if holds(math.exp(middle)) else (bottom, middle)
    return math.exp(bottom) if bottom > math.log(low) or holds(low) else 0.0


def _limit(slos: tuple[Slo, ...], requests: int) -> Limit:
    """What ends a simulation early: more requests miss the tightest limits than the loosest of these SLOs allows."""
    ttft_s, tpot_s, shares = NEVER_S, NEVER_S, [0.0]
    for slo in slos:
        metric = parse_metric(slo.metric)
        if metric is None or metric.quantile is None or slo.bound is not Bound.MAX:
            continue
        if metric.base == "ttft_ms":
            ttft_s = min(ttft_s, slo.limit / 1e3)
        elif metric.base == "tpot_ms":
            tpot_s = min(tpot_s, slo.limit / 1e3)
        shares.append(1 - metric.quantile)
    # Several quantiles of one latency have a limit each; half of all requests missing the tightest is too much for any.
    several = len({slo.metric.split(".")[0] for slo in slos}) < len(slos)
    return Limit(ttft_s=ttft_s, tpot_s=tpot_s, allowed=int(requests * max(0.5 if several else 0.0, *shares)))
