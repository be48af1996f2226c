"""How much a deployment should take on, from its measured capacity, so that overload is answered at once.

A model of queueing, said to be one: docs/cost.md has the formulas, their limits, and a check by simulation.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

MARGIN_SDS = 2.0
"""Requests in flight at capacity swing about their mean like a Poisson count, whose standard deviation is its root:
with twice that above the mean a deployment at capacity refuses hardly anyone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatingLimits:
    """For one replica: answer at most `in_flight_max` at a time, let at most `queue_max` more wait, refuse the rest.

    `capacity_rps` and `e2e_ms` (the mean at it) are what they are made of; `in_flight_mean` is their product, by
    Little's law. `queue_max` is 0 where no SLO bounds the time to the first token.
    """

    capacity_rps: float
    e2e_ms: float
    in_flight_mean: float
    in_flight_max: int
    queue_max: int

    @property
    def admitted_max(self) -> int:
        """Answered and waiting: what vLLM bounds by `--max-num-queued-reqs`, which counts both."""
        return self.in_flight_max + self.queue_max

    def reject_ratio(self, rate_rps: float) -> float:
        """Return the share of requests expected to be refused at a Poisson rate; see `reject_ratio`."""
        servers = max(1, round(self.in_flight_mean))
        return reject_ratio(rate_rps, self.capacity_rps, servers, max(servers, self.admitted_max))


def operating_limits(
    *, capacity_rps: float, e2e_ms: float, ttft_ms: float | None = None, ttft_limit_ms: float | None = None
) -> OperatingLimits:
    """Return the limits of a replica with this capacity, mean E2E and median TTFT at it.

    Queue: a request behind q others waits q / capacity before its own time to the first token begins, and is to have
    that within its limit. Raises ValueError for a capacity or an E2E that is not positive.
    """
    if capacity_rps <= 0 or e2e_ms <= 0:
        raise ValueError(f"no limits from a capacity of {capacity_rps:g}/s and answers of {e2e_ms:g} ms")
    mean = capacity_rps * e2e_ms / 1e3
    spare_ms = 0.0 if ttft_limit_ms is None else max(0.0, ttft_limit_ms - (ttft_ms or 0.0))
    return OperatingLimits(
        capacity_rps=capacity_rps,
        e2e_ms=e2e_ms,
        in_flight_mean=mean,
        in_flight_max=max(1, math.ceil(mean + MARGIN_SDS * math.sqrt(mean))),
        queue_max=math.floor(capacity_rps * spare_ms / 1e3),
    )


def reject_ratio(rate_rps: float, capacity_rps: float, servers: int, room: int) -> float:
    """Return the share of Poisson arrivals that find `room` requests there and are refused: M/M/c/K, c = `servers`.

    With n present, n / c of the capacity is at work, all of it from c on. The balance p(n) = p(n-1) x rate / work(n) is
    summed from K down, so that nothing overflows (Kleinrock 1975, Queueing Systems I, 3.8). Raises ValueError when the
    room is less than the servers.
    """
    if not 1 <= servers <= room or capacity_rps <= 0:
        raise ValueError(f"no queue of {servers} servers with room for {room} at a capacity of {capacity_rps:g}/s")
    if rate_rps <= 0:
        return 0.0
    present = total = 1.0  # of K, then of K-1, …, relative to K
    for n in range(room, 0, -1):
        present *= capacity_rps * min(n, servers) / servers / rate_rps
        total += present
        if math.isinf(total):
            return 0.0
    return 1 / total
