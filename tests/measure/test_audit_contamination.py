"""Planted contaminations, each caught on a server through the real load client; and none seen where there is none."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.engines.base import Server
from autotune.engines.telemetry import watching
from autotune.engines.vllm.engine import VllmEngine
from autotune.load import Progress, build_level, run_level
from autotune.measure import measure
from autotune.records.spec import EngineKind, EngineSpec, LoadSpec, PrefixSpec, UniformLength, WorkloadSpec
from autotune.records.trial import Candidate, Measurement, Role
from tests.builders import study_spec
from tests.nvml_stub.stub import GIB, Driver, install
from tests.simulated.running import Client

pytestmark = pytest.mark.integration

SIMULATED = (sys.executable, "-m", "autotune.engines.simulated")
CLOSED = LoadSpec(concurrency=8, duration_s=1.0, warmup_s=0.3)
OPEN = LoadSpec(poisson_rps=40, duration_s=1.0, warmup_s=0.3)
PROMPTS = UniformLength(low=96, high=160)
WORKLOAD = WorkloadSpec(input_tokens=PROMPTS, output_tokens=UniformLength(low=4, high=12))


@contextmanager
def launched(folder: Path, *faults: str, gpus: tuple[str, ...] = ()) -> Iterator[Server]:
    spec = EngineSpec(kind=EngineKind.VLLM, command=SIMULATED, env={"AUTOTUNE_SIM_FAULTS": ",".join(faults)})
    engine = VllmEngine(study_spec(engine=spec))
    args = {"max_model_len": 1024, "enable_prefix_caching": True}
    candidate = Candidate(params={}, args=args, role=Role.SEARCH, fingerprint="f")
    with engine.launch(candidate, trial_dir=folder, gpus=gpus, on_phase=lambda _: None) as server:
        yield server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """An honest server, whose cache fills from test to test as it does from level to level."""
    with launched(tmp_path_factory.mktemp("honest")) as server:
        yield server


def audited(
    server: Server,
    load: LoadSpec = CLOSED,
    *,
    seed: int,
    workload: WorkloadSpec = WORKLOAD,
    meanwhile: Callable[[], None] = lambda: None,
) -> Measurement:
    """A level, measured; `meanwhile` happens once while it runs."""
    begun = threading.Event()
    plan = build_level(workload, load, seed=seed, vocab_size=server.vocab_size, max_total_tokens=1024)
    with watching(server, every_s=0.1) as watch:

        def progressed(progress: Progress) -> None:
            watch.mark(progress.elapsed_s)
            if not begun.is_set() and progress.elapsed_s > load.warmup_s:
                begun.set()
                meanwhile()

        level = run_level(server.endpoint, plan, on_progress=progressed)
    assert begun.is_set()
    return measure(replace(level, telemetry=watch.telemetry()), metrics=(), slos=(), gpus=1, confidence=0.95)


def doubts(measurement: Measurement) -> list[str]:
    """All but those about the client: the machine that runs the tests may be busy."""
    return [reason for reason in measurement.untrusted if not reason.startswith("client limited")]


# --- nothing planted --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("load", [CLOSED, OPEN], ids=["closed", "open"])
def test_a_clean_level_raises_no_doubt(server: Server, load: LoadSpec) -> None:
    result = audited(server, load, seed=1 if load is CLOSED else 2)
    assert doubts(result) == []
    found = result.counters
    assert found["server_output_tokens"] > 100
    assert found["server_prefix_hit_tokens"] == 0
    assert found["server_running_max"] >= 1
    assert 0 < found["server_ttft_mean_ms"] <= result.values["ttft_ms.mean"].value * 1.1 + 5
    parts = sum(found[f"server_{part}_mean_ms"] for part in ("queue", "prefill"))
    assert parts == pytest.approx(found["server_ttft_mean_ms"], rel=0.05)


def test_a_shared_prefix_raises_none_though_it_is_cached(server: Server) -> None:
    workload = WorkloadSpec(
        input_tokens=PROMPTS, output_tokens=WORKLOAD.output_tokens, prefix=PrefixSpec(tokens=64, groups=3)
    )
    result = audited(server, seed=3, workload=workload)
    assert doubts(result) == []
    assert result.counters["server_prefix_hit_tokens"] > 0.3 * result.counters["server_prompt_tokens"]


def test_a_level_after_one_that_was_cut_raises_none(server: Server) -> None:
    long = WorkloadSpec(input_tokens=PROMPTS, output_tokens=UniformLength(low=600, high=700))
    plan = build_level(long, CLOSED, seed=4, vocab_size=server.vocab_size)
    run_level(server.endpoint, plan, should_stop=lambda progress: "enough" if progress.tokens else None)
    assert doubts(audited(server, seed=5)) == []


# --- planted ----------------------------------------------------------------------------------------------------------


def test_repeated_seeds(server: Server) -> None:
    """What `vllm bench serve` does by default: the same random prompts at each run."""
    assert doubts(audited(server, seed=6)) == []
    (reason,) = doubts(audited(server, seed=6))
    assert reason.startswith("repeated prompts")


def test_prompts_that_were_cached_before(tmp_path: Path) -> None:
    with launched(tmp_path, "prefix_hits:0.5") as server:
        (reason,) = doubts(audited(server, seed=7))
    assert reason.startswith("repeated prompts")


def test_others_who_use_the_same_server(server: Server) -> None:
    def others() -> None:
        for index in range(12):
            Client(server.endpoint.port).complete([200 + index] * 8, 2)

    (reason,) = doubts(audited(server, seed=8, meanwhile=others))
    assert reason.startswith("others use the server")


def test_a_server_that_lies_in_its_counters(tmp_path: Path) -> None:
    with launched(tmp_path, "lies_in_metrics") as server:
        found = doubts(audited(server, seed=9))
    assert [reason.partition(":")[0] for reason in found] == ["the server contradicts itself"] * 2


def test_a_server_that_lies_about_usage(tmp_path: Path) -> None:
    with launched(tmp_path, "wrong_usage") as server:
        found = doubts(audited(server, seed=10))
    assert any(reason.startswith("the server contradicts itself") for reason in found)
    assert any("another length than asked" in reason for reason in found)


@pytest.mark.parametrize(
    ("spoilt", "doubt"),
    [
        ({"throttle": 0x40, "sm_clock_mhz": 1100}, "GPU clocks were held down"),
        ({"processes": f"1:{20 * GIB}", "memory_used": 21 * GIB}, "another program came to the GPU"),
    ],
    ids=["throttled", "tenant"],
)
def test_a_gpu_that_is_not_the_engines_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spoilt: dict[str, object], doubt: str
) -> None:
    driver: Driver = install(monkeypatch, tmp_path)
    with launched(tmp_path, gpus=("0",)) as server:
        clean = audited(server, seed=11)
        found = doubts(audited(server, seed=12, meanwhile=lambda: driver.set(0, **spoilt)))
        driver.set(processes="", memory_used=GIB // 8)
    assert doubts(clean) == []
    assert clean.counters["gpu_sm_clock_mean_mhz"] == 1980
    assert any(reason.startswith(doubt) for reason in found)
