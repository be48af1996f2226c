"""How long a deployment is given to start and to stop, from what the run measured."""

from __future__ import annotations

import math

from autotune.deploy.deployment import Deployment
from autotune.engines.process import GRACE_S
from autotune.trial.figures import figure_of

STARTUP_FACTOR = 3.0
"""A new node reads weights from another disk or the network, and compiles what this machine may have had cached."""

LEAST_STARTUP_S = 120.0
PROBE_PERIOD_S = 10
STOP_FACTOR = 2.0
PROPAGATION_S = 5  # until a cluster's proxies have heard that a pod is going
LONGEST_DRAIN_S = 300


def startup_budget_s(deployment: Deployment) -> int:
    """Return how long an instance may take until it answers, in whole probe periods."""
    slowest_s = max(deployment.startups_s, default=deployment.spec.engine.startup_timeout_s)
    budget_s = max(LEAST_STARTUP_S, STARTUP_FACTOR * slowest_s)
    return math.ceil(budget_s / PROBE_PERIOD_S) * PROBE_PERIOD_S


def startup_words(deployment: Deployment) -> str:
    """Return where `startup_budget_s` comes from, for a comment."""
    budget = f"start-up: {startup_budget_s(deployment)} s, {STARTUP_FACTOR:g} x"
    least = f"(at least {LEAST_STARTUP_S:.0f} s)"
    if not deployment.startups_s:
        return f"{budget} the study's startup_timeout_s, as no start-up was measured {least}"
    caches = "cold ones among them" if deployment.cold else "none of them cold"
    return f"{budget} {max(deployment.startups_s):.0f} s, the slowest start-up measured, {caches} {least}"


def stop_grace_s(deployment: Deployment) -> int:
    """Return seconds from SIGTERM to SIGKILL: the rung of the stop ladder that measured it, or more if it took more."""
    took_s = deployment.trial.cleanup.stop_s if deployment.trial.cleanup else None
    return math.ceil(max(GRACE_S, STOP_FACTOR * (took_s or 0.0)))


def drain_s(deployment: Deployment) -> int:
    """Return seconds for answers under way to end before SIGTERM, on which engines cut them: the p99 of their E2E."""
    e2e = figure_of(deployment.trial, "e2e_ms.p99") or figure_of(deployment.trial, "e2e_ms.mean")
    longest_s = 0 if e2e is None else math.ceil(e2e.value / 1e3)
    return PROPAGATION_S + min(longest_s, LONGEST_DRAIN_S)
