"""What a long level shows: SLOs through to its end, drift that stands out of the scatter, load and lengths shifted."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.records.spec import (
    Bound,
    CapacitySpec,
    FixedLength,
    LoadSpec,
    LogNormalLength,
    PrefixSpec,
    RampArrivals,
    Slo,
    TraceArrivals,
    UniformLength,
    WorkloadSpec,
)
from autotune.records.trial import (
    OVERLOAD,
    ClientHealth,
    GpuSample,
    LevelRecord,
    RequestRecord,
    ServerSample,
    Telemetry,
    TrialRecord,
)
from autotune.trial.judging import judged
from autotune.trial.shifts import scaled_lengths, scaled_load, shifts_of
from autotune.trial.soaking import soak_load, soak_of, trend_of
from tests.builders import objective, study_spec, trial
from tests.fakes import ScriptedServer

SOAK_S = 300.0
SPEC = study_spec()


def level(ttft_ms: Callable[[float], float], **changes: Any) -> LevelRecord:
    """Two requests a second, each of ten tokens; the TTFT is a function of the time."""
    requests = []
    for index in range(600):
        sent_s = index / 2
        first_s = sent_s + ttft_ms(sent_s) / 1e3
        chunks = tuple(first_s + 0.01 * token for token in range(10))
        requests.append(
            RequestRecord(
                index=index,
                scheduled_s=None,
                sent_s=sent_s,
                chunk_s=chunks,
                done_s=chunks[-1],
                status=200,
                prompt_tokens=128,
                output_tokens=10,
                asked_prompt_tokens=128,
                asked_output_tokens=10,
            )
        )
    whole = LevelRecord(
        plan_seed=1,
        offered_rps=None,
        concurrency=8,
        window_s=(0.0, SOAK_S),
        requests=tuple(requests),
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=0.01),
    )
    return replace(whole, **changes)


def soaked(found: LevelRecord) -> Any:
    record: TrialRecord = judged(trial(0), SPEC.objective, [found], 1)
    return soak_of(record, SPEC, found, 1)


def _wavy(at_s: float) -> float:
    return 100 + 5 * math.sin(at_s)


def test_a_steady_engine_holds_without_a_note() -> None:
    soak = soaked(level(_wavy))
    assert (soak.failed, soak.notes, soak.load) == (None, (), "8 clients")
    assert not soak.trends["ttft_ms.p50"].sure


def test_an_engine_that_gets_slower_is_noted_though_its_slos_hold() -> None:
    soak = soaked(level(lambda at_s: _wavy(at_s) + at_s / 3))
    assert soak.failed is None
    assert soak.trends["ttft_ms.p50"].change_ratio == pytest.approx(100 / 150, rel=0.1)
    assert any(note.startswith("ttft_ms.p50 rose by") for note in soak.notes)


def test_an_slo_that_is_missed_in_the_second_half_alone_fails_the_soak() -> None:
    soak = soaked(level(lambda at_s: 100.0 if at_s < 200 else 600.0))
    assert soak.failed is not None
    assert "ttft_ms.p90" in soak.failed


def test_an_engine_that_could_not_keep_up_fails_its_soak() -> None:
    soak = soaked(level(_wavy, stopped=f"{OVERLOAD}ttft_ms.p90: 9 requests wait"))
    assert soak.failed.startswith(OVERLOAD)


def test_a_ramp_is_not_judged_by_its_second_half_and_does_not_drift() -> None:
    rising = replace(SPEC.objective.load, concurrency=None, ramp=RampArrivals(from_rps=1, to_rps=3))
    ramp = replace(SPEC, objective=replace(SPEC.objective, load=rising))
    found = level(lambda at_s: 100 + at_s / 3 if at_s < 255 else 600.0)  # unsettled over all of it, missed in one half
    assert soaked(found).failed is not None
    assert soaked(found).notes
    record: TrialRecord = judged(trial(0), ramp.objective, [found], 1)
    soak = soak_of(record, ramp, found, 1)
    assert (soak.failed, soak.notes, dict(soak.trends)) == (None, (), {})


def test_memory_that_grows_is_noted() -> None:
    times = [float(second) for second in range(0, 300, 5)]
    gpus = tuple(GpuSample(at_s=t, gpu="0", memory_used_bytes=round(1e9 * (1 + t / 600))) for t in times)
    server = tuple(ServerSample(at_s=t, values={"process_resident_memory_bytes": 1e9 + t * 1e6}) for t in times)
    notes = " ".join(soaked(level(_wavy, telemetry=Telemetry(gpus=gpus, server=server))).notes)
    assert "gpu_memory_bytes rose" in notes
    assert "process_memory_bytes rose" in notes


def test_a_slice_in_which_nothing_was_seen_gives_no_trend() -> None:
    few = tuple(GpuSample(at_s=t, gpu="0", memory_used_bytes=1) for t in (1.0, 2.0))
    assert "gpu_memory_bytes" not in soaked(level(_wavy, telemetry=Telemetry(gpus=few))).trends


def test_steady_noise_is_rarely_called_a_trend() -> None:
    rng = np.random.default_rng(1)
    called = [trend_of(1 + 0.05 * rng.standard_normal(10)).sure for _ in range(400)]
    assert np.mean(called) < 0.03


# --- its load ---------------------------------------------------------------------------------------------------------


def test_a_capacity_that_was_searched_is_soaked_below_it() -> None:
    asked = LoadSpec(capacity=CapacitySpec(of="rps"), repeats=3, duration_s=20)
    load = soak_load(asked, 300.0, 10.0)
    assert (load.poisson_rps, load.capacity, load.repeats, load.duration_s) == (9.0, None, 1, 300.0)
    clients = soak_load(replace(asked, capacity=CapacitySpec(of="concurrency")), 300.0, 10.0)
    assert clients.concurrency == 9


@pytest.mark.parametrize(
    "load",
    [LoadSpec(concurrency=10), LoadSpec(poisson_rps=10.0), LoadSpec(ramp=RampArrivals(from_rps=5.0, to_rps=15.0))],
)
def test_load_is_scaled_as_it_arrives(load: LoadSpec) -> None:
    scaled = scaled_load(load, 1.3)
    assert scaled is not None
    assert (scaled.concurrency or scaled.offered_rps) == pytest.approx(13)


def test_what_was_recorded_is_not_scaled() -> None:
    assert scaled_load(LoadSpec(trace=TraceArrivals(file="t")), 1.3) is None
    assert scaled_lengths(WorkloadSpec(lengths="pairs.csv"), 1.3) is None


def test_lengths_are_scaled_but_never_below_their_shared_prefix() -> None:
    workload = WorkloadSpec(
        input_tokens=UniformLength(low=100, high=200),
        output_tokens=LogNormalLength(median=50, sigma=1, low=2, high=500),
        prefix=PrefixSpec(tokens=90),
    )
    shorter = scaled_lengths(workload, 0.7)
    assert shorter is not None
    assert shorter.input_tokens == UniformLength(low=91, high=140)
    assert shorter.output_tokens == LogNormalLength(median=35, sigma=1, low=1, high=500)
    fixed = scaled_lengths(WorkloadSpec(input_tokens=FixedLength(tokens=1), output_tokens=FixedLength(tokens=10)), 1.3)
    assert fixed is not None
    assert (fixed.input_tokens, fixed.output_tokens) == (FixedLength(tokens=1), FixedLength(tokens=13))


def test_a_shift_is_measured_on_the_server_that_was_soaked() -> None:
    from autotune.trial.soaking import shifted

    found = list(shifted(SPEC, ScriptedServer(50.0), 1, lambda _: None))
    assert [each.name for each in found] == [name for name, _ in shifts_of(objective(), objective().load)]
    assert {each.ruling for each in found} <= {"pass", "unsure"}
    assert all(each.objective is not None for each in found)


def test_a_shift_knows_how_long_its_server_took_to_start() -> None:
    from autotune.trial.soaking import shifted

    limit = Slo(metric="startup_s", bound=Bound.MAX, limit=1.0)  # the server took 1.5 s
    spec = replace(SPEC, objective=replace(SPEC.objective, slos=(limit,)))
    found = list(shifted(spec, ScriptedServer(50.0), 1, lambda _: None))
    assert {each.ruling for each in found} == {"fail"}
    assert {each.missed for each in found} == {("startup_s",)}


def test_a_shift_that_the_engine_can_not_hold_says_so() -> None:
    from autotune.trial.soaking import shifted

    server = ScriptedServer(50.0, max_model_len=170)  # 128 + 32 fit, 30 % more do not
    found = {each.name: each for each in shifted(SPEC, server, 1, lambda _: None)}
    assert found["lengths +30%"].ruling is None
    assert "170" in found["lengths +30%"].why
    assert found["lengths -30%"].ruling is not None
