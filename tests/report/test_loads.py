"""How requests and their arrival read."""

from __future__ import annotations

import pytest

from autotune.records.spec import (
    BurstArrivals,
    CapacitySpec,
    FixedLength,
    GammaArrivals,
    LoadSpec,
    PrefixSpec,
    RampArrivals,
    SessionSpec,
    TraceArrivals,
    UniformLength,
    WorkloadSpec,
)
from autotune.report.loads import load_text, workload_text


@pytest.mark.parametrize(
    ("load", "text"),
    [
        (LoadSpec(poisson_rps=8), "Poisson, 8 requests/s"),
        (LoadSpec(constant_rps=8), "evenly spaced, 8 requests/s"),
        (LoadSpec(gamma=GammaArrivals(rps=8, burstiness=2)), "gamma, 8 requests/s, burstiness 2"),
        (
            LoadSpec(bursts=BurstArrivals(rps=8, factor=3, burst_s=2, every_s=9)),
            "bursts, 8 requests/s on average, 3 times as fast for 2 of every 9 s",
        ),
        (LoadSpec(ramp=RampArrivals(from_rps=1, to_rps=9)), "a ramp from 1 to 9 requests/s"),
        (
            LoadSpec(trace=TraceArrivals(file="/a/t.csv", speed=2, start_s=60, repeat=True)),
            "the trace t.csv, 2 times as fast, from 60 s on, repeated",
        ),
        (LoadSpec(concurrency=8), "8 at a time"),
        (
            LoadSpec(capacity=CapacitySpec(high=9, load_s=100)),
            "a search for the highest rate up to 9, in at most 100 s of load",
        ),
    ],
)
def test_every_kind_of_load_is_told(load: LoadSpec, text: str) -> None:
    assert load_text(load) == f"{text}; 60 s after 5 s of warm-up"


def test_levels_and_their_bound_are_told() -> None:
    assert load_text(LoadSpec(concurrency=1, max_requests=9, repeats=3)).endswith("at most 9 requests, 3 a launch")


def test_what_lengths_don_t_say_of_requests_is_told() -> None:
    sessions = SessionSpec(turns=UniformLength(low=1, high=8), think_s=4)
    spec = WorkloadSpec(
        shape="chat", correlation=0.3, prefix=PrefixSpec(tokens=64, groups=2), sessions=sessions, text="natural"
    )
    assert workload_text(spec) == (
        "chat, rank correlation of lengths 0.3, a shared prefix of 64 tokens, 2 groups, "
        "conversations of 1 to 8 turns, 4 s between them, English text"
    )
    assert workload_text(WorkloadSpec(dataset="/a/b", sessions=SessionSpec(turns=FixedLength(tokens=3)))) == (
        "custom, /a/b, conversations of 3 turns, 0 s between them"
    )
