"""How much one replica may be sent, and how many there should be: for proxies and clusters, from what was measured."""

from __future__ import annotations

import math
from dataclasses import dataclass

from autotune.cost import replicas_for
from autotune.deploy.deployment import Deployment
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import TrialRecord
from autotune.trial.figures import figure_of, operating_limits_of

SECONDS_PER_MINUTE = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaLimits:
    """For one replica; None of what nothing was measured for. `why` says what they rest on."""

    requests_per_minute: int | None
    tokens_per_minute: int | None
    in_flight: int | None
    why: str


def replica_limits(trial: TrialRecord, objective: ObjectiveSpec) -> ReplicaLimits:
    """Return the limits of one replica serving as `trial` did: from its capacity, else the load it was measured at.

    Tokens count prompts and answers, at the mean of the workload that was measured.
    """
    operating, load = operating_limits_of(trial, objective), objective.load
    rate: float | None
    in_flight: int | None
    if operating is not None:
        rate, in_flight = operating.capacity_rps, operating.admitted_max
        why = f"its capacity under the SLOs, {rate:.3g} requests/s, and a model of queueing (docs/cost.md)"
    else:
        rate, in_flight = load.offered_rps, _concurrency(trial, objective)
        why = "the load that was measured, which may be less than its capacity"
    return ReplicaLimits(
        requests_per_minute=None if rate is None else max(1, math.floor(rate * SECONDS_PER_MINUTE)),
        tokens_per_minute=_tokens_per_minute(trial, rate),
        in_flight=in_flight,
        why=why,
    )


def _concurrency(trial: TrialRecord, objective: ObjectiveSpec) -> int | None:
    found = trial.capacity
    if found is not None and found.of == "concurrency":
        return max(1, math.floor(found.value.value))
    return objective.load.concurrency


def _tokens_per_minute(trial: TrialRecord, rate_rps: float | None) -> int | None:
    tokens, requests = figure_of(trial, "total_tok_per_s"), figure_of(trial, "request_rps")
    if rate_rps is None or tokens is None or requests is None or requests.value <= 0:
        return None
    return max(1, math.floor(tokens.value / requests.value * rate_rps * SECONDS_PER_MINUTE))


def replicas_of(deployment: Deployment) -> tuple[int, str]:
    """Return how many replicas serve the traffic that the study's price names, and why; 1 where it names none."""
    price, capacity = deployment.spec.price, figure_of(deployment.trial, "capacity_rps")
    if price is None or price.rate_rps is None or capacity is None or capacity.value <= 0:
        return 1, "for the study names no traffic (price.rate_rps) or measured no capacity"
    count = replicas_for(price.rate_rps, capacity.value, price.headroom_ratio)
    kept = f"{price.headroom_ratio:.0%} of a capacity of {capacity.value:.3g}/s kept free"
    return count, f"for {price.rate_rps:g} requests/s, {kept}"
