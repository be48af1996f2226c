"""Learned bounds: what a failed launch named excludes what is no better, and never what could run."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune import space
from autotune.engines.simulated.engine import resolve
from autotune.models.config import RefusedConfig
from autotune.models.memory import plan_memory, startup_failure
from autotune.pipeline import read_study
from autotune.records.spec import Args, StudySpec
from autotune.records.trial import Failure, Fault, Outcome, Phase, TrialRecord
from autotune.search.bounds import Bounds
from autotune.search.gate import Gate, Source
from autotune.space import RuledOut
from tests.builders import trial

VERSIONS = {"vllm": "0.32.0", "gpus": "NVIDIA H100"}
FAILED: Args = {
    "max_model_len": 8192, "gpu_memory_utilization": 0.9, "max_num_seqs": 64, "max_num_batched_tokens": 4096,
    "block_size": 32, "tensor_parallel_size": 2, "kv_cache_dtype": "auto", "enable_prefix_caching": True,
    "stream_interval": 1,
}  # fmt: skip
EDGES = {"kv_needed_bytes": 2e9, "kv_available_bytes": 1e9, "max_model_len_that_fits": 4096.0}


def failed(number: int = 3, edges: Mapping[str, float] = EDGES, **changes: Any) -> TrialRecord:
    failure = Failure(
        outcome=Outcome.OOM_STARTUP, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause="too small", edges=dict(edges)
    )
    record = replace(trial(number, outcome=Outcome.OOM_STARTUP, args=FAILED), failure=failure, versions=VERSIONS)
    return replace(record, **changes)


def bounds(*, plain: bool = True) -> Bounds:
    return Bounds(versions=VERSIONS, plain_decoder=plain)


@pytest.mark.parametrize(
    ("change", "excluded"),
    [
        ({}, True),
        ({"gpu_memory_utilization": 0.85}, True),
        ({"gpu_memory_utilization": 0.91}, False),
        ({"max_num_seqs": 128, "max_num_batched_tokens": 8192}, True),
        ({"max_num_seqs": 32}, False),
        ({"max_num_batched_tokens": 2048}, False),
        ({"block_size": 64}, True),
        ({"block_size": 48}, False),
        ({"block_size": 16}, False),
        ({"tensor_parallel_size": 1}, False),  # fewer heads a GPU, or a layer without its all-reduce: another launch
        ({"kv_cache_dtype": "fp8"}, False),
        ({"quantization": "fp8"}, False),
        ({"stream_interval": 10}, True),
        ({"enable_prefix_caching": False}, True),
        ({"max_model_len": 16384}, True),
        ({"max_model_len": 5000}, True),  # shorter, but longer than what the engine said would fit
        ({"max_model_len": 4200}, False),  # so near that another launch may find room
        ({"max_model_len": 2048}, False),
    ],
)
def test_what_is_no_better_than_a_launch_that_named_its_edge_is_excluded(
    change: Mapping[str, Any], *, excluded: bool
) -> None:
    why = bounds().learned(failed()).excludes({**FAILED, **change})
    assert (why is not None) is excluded
    if why:
        assert "trial 3" in why
        assert "4096" in why


def test_a_default_is_no_number() -> None:
    learned = bounds().learned(failed())
    unknown = {name: value for name, value in FAILED.items() if name != "gpu_memory_utilization"}
    assert learned.excludes(unknown) is None
    assert learned.excludes({**FAILED, "max_model_len": "auto"}) is None


def test_prefix_caching_is_without_effect_only_where_every_layer_keeps_all_keys() -> None:
    assert bounds(plain=False).learned(failed()).excludes({**FAILED, "enable_prefix_caching": False}) is None


@pytest.mark.parametrize(
    "record",
    [
        failed(edges={}),  # it ran out of memory, but of which?
        failed(edges={**EDGES, "max_model_len_that_fits": 8000.0}),  # missed by less than launches differ
        failed(versions={**VERSIONS, "vllm": "0.33.0"}),
        failed(versions={**VERSIONS, "gpus": "NVIDIA A100"}),
        failed(others_bytes={"0": 5 * 2**30}),
        failed(args={**FAILED, "pipeline_parallel_size": 2}),
        failed(
            failure=Failure(
                outcome=Outcome.UNKNOWN, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause="?", edges=EDGES
            )
        ),
        failed(
            failure=Failure(
                outcome=Outcome.ENVIRONMENT, fault=Fault.ENVIRONMENT, phase=Phase.LAUNCH, cause="?", edges=EDGES
            )
        ),
    ],
)  # fmt: skip
def test_what_may_not_be_the_candidates_own_doing_or_was_another_engines_teaches_nothing(record: TrialRecord) -> None:
    assert bounds().learned(record) == bounds()


def test_the_gate_learns_counts_and_drops_bounds_like_its_other_sources() -> None:
    told: list[str] = []
    gate = Gate(model=None, memory=None, preflight=None, bounds=bounds(), tell=told.append)
    gate.ran(failed())
    worse = {**FAILED, "gpu_memory_utilization": 0.8}
    exclusion = gate.exclude(worse)
    assert exclusion is not None
    assert (exclusion.source, exclusion.failure.outcome) == (Source.BOUND, Outcome.OOM_STARTUP)
    assert exclusion.failure.remedy
    gate.ran(trial(4, args=worse))  # it runs after all
    assert gate.exclude(FAILED) is None
    assert gate.bounds is None
    assert "learned bound" in told[0]


@given(
    better=st.booleans(),
    seqs=st.integers(1, 2048),
    tokens=st.integers(64, 65536),
    utilization=st.floats(0.1, 0.99),
    length=st.integers(16, 131072),
)
def test_a_candidate_with_any_parameter_better_is_left_alone(
    *, better: bool, seqs: int, tokens: int, utilization: float, length: int
) -> None:
    args = {
        **FAILED, "max_num_seqs": seqs, "max_num_batched_tokens": tokens, "gpu_memory_utilization": utilization,
        "max_model_len": length,
    }  # fmt: skip
    is_better = seqs < 64 or tokens < 4096 or utilization > 0.9 or length <= 4096
    if is_better:
        assert bounds().learned(failed()).excludes(args) is None


SETUPS = [  # each with little room for the KV cache, where bounds are learned at all
    ("meta-llama/Llama-3.1-70B", "h100", 2, 8192),
    ("Qwen/Qwen3-32B", "a100", 1, 16384),
    ("meta-llama/Llama-3.1-8B", "l40s", 1, 131072),
]


@pytest.mark.parametrize(("model", "gpu", "gpus", "length"), SETUPS)
@pytest.mark.parametrize("name", ["default", "throughput", "latency"])
def test_on_simulated_landscapes_launches_are_saved_and_none_that_would_succeed(  # noqa: PLR0917
    tmp_path: Path, model: str, gpu: str, gpus: int, length: int, name: str
) -> None:
    spec = _study(tmp_path, model, gpu, gpus, length, name)
    candidates, rng = space.build_space(spec, gpus=gpus), random.Random(5)
    gate = Gate(model=None, memory=None, preflight=None, bounds=bounds(), tell=print)
    saved = 0
    for number in range(600):
        drawn = candidates.sample(rng, ends_ratio=0.3)
        if isinstance(drawn, RuledOut):
            continue
        cause = _startup(spec, drawn.args, gpus)
        if cause is None:
            continue  # refused without a launch
        excluded = gate.exclude(drawn.args)
        assert not (excluded and cause == ""), drawn.args
        saved += excluded is not None
        if cause and not excluded:
            gate.ran(_crashed(number, drawn.args, cause))
    assert gate.bounds is not None
    assert saved > 0 or "70B" not in model  # of all setups the one with least room


def _study(folder: Path, model: str, gpu: str, gpus: int, length: int, name: str) -> StudySpec:  # noqa: PLR0917
    path = folder / "study.yaml"
    path.write_text(
        f"name: x\nmodel: {model}\nsearch_space: vllm/{name}\nobjective: chat\nquality: unchecked\n"
        f"engine: {{kind: simulated, simulate: {{gpu: {gpu}}}, args: {{max_model_len: {length}}}}}\n"
        f"hardware: {{gpus: {[*range(gpus)]}}}\n"
    )
    return read_study(path)


def _startup(spec: StudySpec, args: Args, gpus: int) -> str | None:
    """Why the simulated engine would not start, "" if it would; None for what is refused without a launch."""
    try:
        config = resolve(spec, args)
    except RefusedConfig:
        return None
    if config.tp > gpus:
        return None
    failure = startup_failure(config, plan_memory(config))
    return failure.cause if failure else ""


def _crashed(number: int, args: Args, cause: str) -> TrialRecord:
    from autotune.engines.vllm.diagnosis import diagnose

    failure = replace(diagnose(1, Phase.LAUNCH, cause), outcome=Outcome.OOM_STARTUP, fault=Fault.CANDIDATE)
    return failed(number, args=args, failure=failure)
