"""Streams of latencies with the bursts that serving engines make, for benchmarks/statistics/coverage.py.

A step of the engine takes base + prefill tokens + sequences times constants; it prefills first come, first served
within a token budget and decodes up to `max_seqs` sequences, one token a step: a caricature of continuous batching.
"""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

BASE_S, PREFILL_S, DECODE_S, BUDGET = 0.006, 2.5e-5, 1e-4, 2048


@numba.njit(cache=True)
def serve(arrivals: Floats, inputs: Ints, outputs: Ints, clients: int, max_seqs: int) -> tuple[Floats, Floats]:
    """Return (TTFT, TPOT) in s by request. `clients` > 0: a closed loop of so many, `arrivals` is not read."""
    n = inputs.size
    start, ttft, tpot, first = np.zeros(n), np.zeros(n), np.zeros(n), np.zeros(n)
    if clients == 0:
        start[:] = arrivals
    running, left = np.zeros(max_seqs, np.int64), np.zeros(max_seqs, np.int64)
    sent = n if clients == 0 else clients
    active, head, part, now, finished = 0, 0, 0, 0.0, 0
    while finished < n and not (clients > 0 and sent >= n):
        if active == 0 and head < n and start[head] > now:
            now = start[head]
        budget, prefilled, done = BUDGET - active, 0, 0
        while head + done < sent and start[head + done] <= now and budget > 0 and active + done < max_seqs:
            take = min(budget, inputs[head + done] - part)
            part += take
            budget -= take
            prefilled += take
            if part == inputs[head + done]:
                done += 1
                part = 0
        now += BASE_S + PREFILL_S * prefilled + DECODE_S * active
        kept = 0
        for i in range(active):
            r = running[i]
            left[i] -= 1
            if left[i] > 0:
                running[kept], left[kept] = r, left[i]
                kept += 1
                continue
            tpot[r] = (now - first[r]) / (outputs[r] - 1)
            finished += 1
            if clients > 0 and sent < n:
                start[sent] = now
                sent += 1
        active = kept
        for i in range(done):
            r = head + i
            ttft[r], first[r] = now - start[r], now
            running[active], left[active] = r, outputs[r] - 1
            active += 1
        head += done
    return ttft[: n - 2 * max_seqs], tpot[: n - 2 * max_seqs]


def lengths(rng: np.random.Generator, median: float, sigma: float, n: int) -> Ints:
    """Log-normal lengths, cut to 2..10 medians."""
    return np.clip(median * np.exp(rng.normal(0, sigma, n)), 2, 10 * median).astype(np.int64)


def chat(
    rng: np.random.Generator, n: int, *, clients: int = 0, load: float = 0.0, max_seqs: int = 64
) -> tuple[Floats, Floats]:
    """Serve n chat requests: `clients` in a closed loop, or Poisson at `load` times the engine's saturated rate."""
    inputs, outputs = lengths(rng, 200, 0.8, n), lengths(rng, 150, 0.7, n)
    if clients:
        return serve(np.zeros(n), inputs, outputs, clients, max_seqs)
    probe = min(n, 20_000)
    saturated, _ = serve(np.zeros(probe), inputs[:probe], outputs[:probe], 0, max_seqs)
    rate = len(saturated) / saturated.max()
    return serve(np.cumsum(rng.exponential(1 / (load * rate), n)), inputs, outputs, 0, max_seqs)
