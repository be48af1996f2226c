"""When requests arrive in an open loop: schedules, as seconds from the beginning of their level."""

from __future__ import annotations

from autotune.load.seeds import Stream, generator

_BLOCK = 1024


def poisson(rate_rps: float, horizon_s: float, seed: int) -> tuple[float, ...]:
    """Arrival times of a Poisson process of `rate_rps` in [0, `horizon_s`).

    The unit gaps depend on the seed alone: another rate replays the same trace faster or slower, so candidates measured
    at different rates share their randomness.
    """
    import numpy as np  # noqa: PLC0415 - heavy; the load client imports this package without it

    rng = generator(seed, Stream.ARRIVALS)
    blocks = []
    elapsed = 0.0
    while elapsed < horizon_s * rate_rps:
        block = elapsed + np.cumsum(rng.exponential(size=_BLOCK))
        elapsed = float(block[-1])
        blocks.append(block)
    times_s = np.concatenate(blocks) / rate_rps
    return tuple(times_s[times_s < horizon_s].tolist())
