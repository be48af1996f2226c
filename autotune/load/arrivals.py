"""When requests arrive in an open loop: schedules, as seconds from the beginning of their level.

Every process is a unit trace, drawn from the seed alone, whose time is changed to the wanted rate: another rate replays
the same trace faster or slower, so candidates measured at different rates share their randomness.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.errors import InputError
from autotune.load.seeds import Stream, generator
from autotune.records.spec import BurstArrivals, LoadSpec, RampArrivals

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

REQUESTS_MAX = 10_000_000
"""A level of more is a slip of the pen, and its times alone would fill the memory."""

_BLOCK = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A stretch of time in which the rate goes from one value to another in a straight line."""

    begin_s: float
    end_s: float
    from_rps: float
    to_rps: float

    @property
    def arrivals(self) -> float:
        """How many are expected in it."""
        return (self.from_rps + self.to_rps) / 2 * (self.end_s - self.begin_s)


def arrival_times(load: LoadSpec, seed: int, *, a_request: float = 1.0) -> tuple[float, ...]:
    """The times of an open loop that is no trace, over warm-up and window; `a_request` arrivals for each request.

    Less than one where an arrival brings several requests, as a session does. Raises InputError for another load.
    """
    horizon_s = load.warmup_s + load.duration_s
    _check_size(load, horizon_s)
    if load.poisson_rps is not None:
        return poisson(load.poisson_rps * a_request, horizon_s, seed)
    if load.constant_rps is not None:
        return constant(load.constant_rps * a_request, horizon_s)
    if load.gamma is not None:
        return gamma(load.gamma.rps * a_request, load.gamma.burstiness, horizon_s, seed)
    if load.bursts is not None:
        return varying(burst_rates(load.bursts, horizon_s, a_request), seed)
    if load.ramp is not None:
        return varying(ramp_rates(load.ramp, load.warmup_s, horizon_s, a_request), seed)
    raise InputError("the load has no arrivals of its own", "set a rate, or a trace")


def _check_size(load: LoadSpec, horizon_s: float) -> None:
    expected = (load.offered_rps or 0.0) * horizon_s
    periods = horizon_s / load.bursts.every_s if load.bursts is not None else 0.0
    if max(expected, periods) > REQUESTS_MAX:
        raise InputError(f"a level of {max(expected, periods):.3g} requests or bursts", "lower the rate or duration_s")


def poisson(rate_rps: float, horizon_s: float, seed: int) -> tuple[float, ...]:
    """Arrival times of a Poisson process of `rate_rps` in [0, `horizon_s`)."""
    rng = generator(seed, Stream.ARRIVALS)
    return _scaled(lambda: rng.exponential(size=_BLOCK), rate_rps, horizon_s)


def gamma(rate_rps: float, burstiness: float, horizon_s: float, seed: int) -> tuple[float, ...]:
    """Arrival times in [0, `horizon_s`) whose gaps are gamma-distributed with mean 1 / `rate_rps` and a squared
    coefficient of variation of `burstiness`: 1 is Poisson, above it requests come in clumps, below it more evenly."""
    rng = generator(seed, Stream.ARRIVALS)
    return _scaled(lambda: rng.gamma(1 / burstiness, burstiness, size=_BLOCK), rate_rps, horizon_s)


def constant(rate_rps: float, horizon_s: float) -> tuple[float, ...]:
    """Evenly spaced arrival times in [0, `horizon_s`), the first at 0."""
    count = int(horizon_s * rate_rps) + 1
    return tuple(at_s for at_s in (i / rate_rps for i in range(count)) if at_s < horizon_s)


def burst_rates(bursts: BurstArrivals, horizon_s: float, scale: float = 1.0) -> Iterator[Segment]:
    """The rate over time: a burst begins every period, the first at 0; the mean over whole periods is `rps`."""
    burst_share = bursts.burst_s / bursts.every_s
    quiet_rps = scale * bursts.rps / (1 + (bursts.factor - 1) * burst_share)
    begin_s = 0.0
    while begin_s < horizon_s:
        middle_s, end_s = begin_s + bursts.burst_s, begin_s + bursts.every_s
        loud_rps = quiet_rps * bursts.factor
        yield Segment(begin_s=begin_s, end_s=min(middle_s, horizon_s), from_rps=loud_rps, to_rps=loud_rps)
        if middle_s < horizon_s:
            yield Segment(begin_s=middle_s, end_s=min(end_s, horizon_s), from_rps=quiet_rps, to_rps=quiet_rps)
        begin_s = end_s


def ramp_rates(ramp: RampArrivals, warmup_s: float, horizon_s: float, scale: float = 1.0) -> Iterator[Segment]:
    """The rate over time: that of the beginning during the warm-up, then a straight line to the end of the window."""
    first_rps, last_rps = scale * ramp.from_rps, scale * ramp.to_rps
    if warmup_s:
        yield Segment(begin_s=0.0, end_s=warmup_s, from_rps=first_rps, to_rps=first_rps)
    yield Segment(begin_s=warmup_s, end_s=horizon_s, from_rps=first_rps, to_rps=last_rps)


def varying(rates: Iterator[Segment], seed: int) -> tuple[float, ...]:
    """Arrival times of a Poisson process whose rate varies: the unit trace through the inverse of the expected count.

    (Cinlar 1975, Introduction to Stochastic Processes, 4.7: time changed by the cumulative rate is a unit process.)
    """
    segments = list(rates)
    unit = poisson(1.0, sum(segment.arrivals for segment in segments), seed)
    times_s: list[float] = []
    before = 0.0
    for segment in segments:
        after = before + segment.arrivals
        done = len(times_s)
        times_s += [_inverse(segment, count - before) for count in unit[done : bisect_left(unit, after, done)]]
        before = after
    return tuple(times_s)


def _inverse(segment: Segment, count: float) -> float:
    """When `count` arrivals are expected since the segment's begin: r t + g t^2 / 2 = count, solved without
    cancellation for a slope g near 0."""
    slope = (segment.to_rps - segment.from_rps) / (segment.end_s - segment.begin_s)
    root = math.sqrt(max(segment.from_rps**2 + 2 * slope * count, 0.0))
    return segment.begin_s + 2 * count / (segment.from_rps + root)


def _scaled(draw_gaps: Callable[[], Floats], rate_rps: float, horizon_s: float) -> tuple[float, ...]:
    """The times of a renewal process with gaps of mean 1, divided by the rate."""
    import numpy as np  # noqa: PLC0415 - heavy; the load client imports this package without it

    blocks = []
    elapsed = 0.0
    while elapsed < horizon_s * rate_rps:
        block = elapsed + np.cumsum(draw_gaps())
        elapsed = float(block[-1])
        blocks.append(block)
    times_s = np.concatenate(blocks) / rate_rps if blocks else np.zeros(0)
    return tuple(times_s[times_s < horizon_s].tolist())
