"""One cell of the benchmark: a level of load against the truth server, and by how much what was measured is off."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from autotune.load import build_level, run_level
from autotune.records.spec import FixedLength, LoadSpec, UniformLength, WorkloadSpec
from autotune.records.trial import Endpoint, LevelRecord
from benchmarks.load.truth import Truth, TruthServer

Floats = NDArray[np.float64]
TTFT_MS, ITL_MS = 50.0, 20.0
INPUT_TOKENS, OUTPUT_LOW, OUTPUT_HIGH = 128, 32, 96
# At 512 streams: 102,400 events a second are due, more than one core takes.
SATURATED_STREAMS, SATURATED_ITL_MS = 512, 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """Either so many `streams` in a closed loop or `rps` requests a second of a Poisson process."""

    streams: int | None = None
    rps: float | None = None
    itl_ms: float = ITL_MS

    @property
    def name(self) -> str:
        return f"{self.streams} streams" if self.streams else f"{self.rps:g} req/s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Errors:
    """What one run of one client gave; errors in ms against the server's log, None where nothing was measured.

    TTFT errors are signed, gaps' errors absolute. `cpu_us` is the client's CPU time for each token event, which is also
    in ms for each thousand.
    """

    requests: int
    failed: int
    ttft_mean_ms: float
    ttft_p99_ms: float
    itl_p99_ms: float
    events_per_s: float | None = None
    cpu_us: float = 0.0
    send_lag_p99_ms: float | None = None


def ours(cell: Cell, program: Path, core: int, duration_s: float, seed: int) -> Errors:
    """Run the cell with autotune's own client."""
    load = LoadSpec(concurrency=cell.streams, poisson_rps=cell.rps, duration_s=duration_s, warmup_s=0.0)
    workload = WorkloadSpec(
        input_tokens=FixedLength(tokens=INPUT_TOKENS), output_tokens=UniformLength(low=OUTPUT_LOW, high=OUTPUT_HIGH)
    )
    with TruthServer(program, ttft_ms=TTFT_MS, itl_ms=cell.itl_ms, core=core) as server:
        endpoint = Endpoint(host="127.0.0.1", port=server.port, model_name="truth")
        level = run_level(endpoint, build_level(workload, load, seed=seed))
    truths = {int(name.rsplit("-", 1)[1]): truth for name, truth in server.log().items()}
    return compared(level, truths)


def compared(level: LevelRecord, truths: dict[int, Truth]) -> Errors:
    good = [record for record in level.requests if record.error is None]
    if not good:
        raise SystemExit(f"no request succeeded: {level.requests[0].error if level.requests else 'none was sent'}")
    events = sum(len(record.chunk_s) for record in level.requests)
    busy_s = max(record.done_s or 0.0 for record in good)
    return Errors(
        requests=len(good),
        failed=len(level.requests) - len(good),
        **figures(
            [(record.ttft_ms or 0.0) - truths[record.index].ttft_s * 1e3 for record in good],
            [gap_errors(np.diff(record.chunk_s), truths[record.index]) for record in good],
        ),
        events_per_s=events / busy_s,
        cpu_us=(level.client.cpu_ratio or 0.0) * busy_s / events * 1e6,
        send_lag_p99_ms=level.client.send_lag_p99_ms,
    )


def gap_errors(gaps_s: Sequence[float] | Floats, truth: Truth) -> Floats:
    """By how many ms each gap between tokens is off. Raises ValueError when there are not as many as were sent."""
    errors_s: Floats = np.abs(np.asarray(gaps_s) - np.diff(truth.sent_s))
    return errors_s * 1e3


def figures(ttfts_ms: Sequence[float], gaps_ms: Sequence[Floats]) -> dict[str, float]:
    """The figures that any client has: of its TTFT errors, and of its gaps' by request."""
    return {
        "ttft_mean_ms": float(np.mean(ttfts_ms)),
        "ttft_p99_ms": float(np.quantile(ttfts_ms, 0.99)),
        "itl_p99_ms": float(np.quantile(np.concatenate(gaps_ms), 0.99)),
    }
