"""The audit believes a healthy level of either engine, and finds prompts that were sent before."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.telemetry import watching
from autotune.load import build_level, run_level
from autotune.measure import measure
from autotune.records.spec import LoadSpec
from autotune.records.trial import Measurement
from tests.contract.engines import Live
from tests.contract.test_load import WORKLOAD


def audited(engine: Live, load: LoadSpec, seed: int) -> Measurement:
    server = engine.server
    plan = build_level(WORKLOAD, load, seed=seed, vocab_size=server.vocab_size, max_total_tokens=server.max_model_len)
    with watching(server, every_s=0.2) as watch:
        level = run_level(
            server.endpoint,
            plan,
            on_progress=lambda progress: watch.mark(progress.elapsed_s),
            dialect=engine.speaks.dialect,
        )
    return measure(replace(level, telemetry=watch.telemetry()), metrics=(), slos=(), gpus=1, confidence=0.95)


@pytest.mark.parametrize(
    ("load", "seed"),
    [
        (LoadSpec(concurrency=4, duration_s=3.0, warmup_s=0.5), 21),
        (LoadSpec(poisson_rps=10, duration_s=3.0, warmup_s=0.5), 22),
    ],
    ids=["closed", "poisson"],
)
def test_a_healthy_level_is_believed(engine: Live, load: LoadSpec, seed: int) -> None:
    result = audited(engine, load, seed)
    busy_machine = ("client limited", "too few requests")
    assert [reason for reason in result.untrusted if not reason.startswith(busy_machine)] == []
    assert result.counters.keys() >= engine.speaks.counters
    assert result.counters.get("server_outside_mean_ms", 0.0) < result.values["ttft_ms.mean"].value
