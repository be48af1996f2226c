"""What a deployment costs a month, and from which volume on it beats a managed API."""

from __future__ import annotations

import math
from dataclasses import dataclass

HOURS_PER_MONTH = 730.0
"""365 x 24 / 12, as cloud providers bill a month."""

MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """Replicas of one configuration and what surrounds them.

    `starts_per_month` counts the starts of each replica (updates, scaling); each occupies its GPUs for `startup_s` and
    serves nothing. `preparation_s` is GPU time per update, once for all replicas (quantisation, engine builds).
    `overheads_usd` are the user's own figures by name (network, engineering, operations); `downtime_usd_per_hour` is
    what an hour without service costs beyond them.
    """

    replicas: int
    gpus_per_replica: int
    usd_per_gpu_hour: float
    startup_s: float = 0.0
    preparation_s: float = 0.0
    starts_per_month: float = 0.0
    overheads_usd: float = 0.0
    downtime_hours_per_month: float = 0.0
    downtime_usd_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class MonthlyCost:
    """Dollars a month. Start-ups of replicas are inside `gpus_usd` already, since idle GPUs are paid for as well:
    `startups_usd` says which part of it served nothing. Preparation needs GPUs of its own and adds to it."""

    gpus_usd: float
    startups_usd: float
    preparation_usd: float
    overheads_usd: float
    downtime_usd: float

    @property
    def total_usd(self) -> float:
        """All that is paid."""
        return self.gpus_usd + self.preparation_usd + self.overheads_usd + self.downtime_usd

    def usd_per_million_tok(self, tok_per_month: float) -> float:
        """Return dollars per million tokens at a monthly volume: the fixed total over what is really served."""
        return self.total_usd / tok_per_month * MILLION if tok_per_month > 0 else math.inf


def replicas_for(rate_rps: float, capacity_rps: float, headroom_ratio: float) -> int:
    """Return how many replicas serve `rate_rps` with a share `headroom_ratio` of their capacity kept free.

    Raises ValueError for a capacity that is not positive or a headroom outside [0, 1).
    """
    if capacity_rps <= 0 or not 0 <= headroom_ratio < 1:
        raise ValueError(f"no replicas for a capacity of {capacity_rps:g}/s with a headroom of {headroom_ratio:g}")
    usable_rps = capacity_rps * (1 - headroom_ratio)
    return max(1, math.ceil(rate_rps / usable_rps - 1e-9))


def monthly_cost(deployment: Deployment) -> MonthlyCost:
    """Return what a deployment costs a month, by what it is paid for."""
    d = deployment
    group_usd_per_s = d.gpus_per_replica * d.usd_per_gpu_hour / 3600
    return MonthlyCost(
        gpus_usd=d.replicas * d.gpus_per_replica * d.usd_per_gpu_hour * HOURS_PER_MONTH,
        startups_usd=d.replicas * d.starts_per_month * d.startup_s * group_usd_per_s,
        preparation_usd=d.starts_per_month * d.preparation_s * group_usd_per_s,
        overheads_usd=d.overheads_usd,
        downtime_usd=d.downtime_hours_per_month * d.downtime_usd_per_hour,
    )


def break_even_tok_per_month(total_usd: float, api_usd_per_million_tok: float) -> float:
    """Return the tokens a month from which `total_usd` is less than a managed API's bill; infinite for a free one."""
    return total_usd / api_usd_per_million_tok * MILLION if api_usd_per_million_tok > 0 else math.inf
