"""The study's requests as a simulation takes them: those that every candidate is measured with, without their text."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from autotune import load
from autotune.errors import AutotuneError
from autotune.models.simulation import Trace, trace_of
from autotune.records.spec import LoadSpec, ObjectiveSpec
from autotune.records.trial import RequestPlan
from autotune.trial.plans import level_seed

ROUNDS = 3  # requests a client of a closed loop: one to fill the batch, the others to see it turn over
FEWEST, MOST = 240, 1_500
"""Requests of a simulation. Below the first its figures are luck; beyond the second it takes too long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """`trace` at `rps` requests a second (arrivals as planned), or for `concurrency` clients; requests that arrive from
    `begin_s` on count."""

    trace: Trace
    concurrency: int | None
    rps: float | None
    begin_s: float


def traffic_of(objective: ObjectiveSpec, seed: int) -> Traffic | None:
    """Return the traffic of a study; None where only a server could count its tokens, or its file can't be read."""
    asked = objective.load
    try:
        plan = load.build_level(objective.workload, _simple(asked), seed=level_seed(seed, 0))
        wanted = MOST if plan.concurrency is None else min(MOST, max(FEWEST, ROUNDS * plan.concurrency))
        requests = [plan.requests[i] for i in range(min(wanted, len(plan.requests)))]
    except (AutotuneError, OSError):
        return None  # the trial itself will say so, with the place
    prompts = [_prompt_tokens(request) for request in requests]
    if not requests or any(tokens is None for tokens in prompts):
        return None
    return Traffic(
        trace=trace_of(
            np.array([tokens or 1 for tokens in prompts]),
            [request.output_tokens for request in requests],
            [request.at_s or 0.0 for request in requests],
            [request.prefix_group for request in requests],
            [request.prefix_tokens for request in requests],
        ),
        concurrency=plan.concurrency,
        rps=plan.offered_rps,
        begin_s=plan.warmup_s,
    )


def _simple(asked: LoadSpec) -> LoadSpec:
    """A capacity is searched over loads: its requests are taken at one a second, or by one client, and rescaled."""
    if asked.capacity is None:
        return asked
    if asked.capacity.of == "concurrency":
        return LoadSpec(concurrency=MOST // ROUNDS, duration_s=asked.duration_s, warmup_s=asked.warmup_s)
    return LoadSpec(poisson_rps=1.0, duration_s=CAPACITY_REQUESTS, warmup_s=0.0)


CAPACITY_REQUESTS = 300.0
"""Requests of one simulation of a search for capacity, of which there are several a candidate."""


def _prompt_tokens(request: RequestPlan) -> int | None:
    if request.prompt_tokens is None and request.prompt_ids is not None:
        return len(request.prompt_ids)
    return request.prompt_tokens
