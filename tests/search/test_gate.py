"""The gate: three sources in turn, none of which may contradict what ran."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune import space
from autotune.engines.base import engine_for
from autotune.engines.hardware import Gpu
from autotune.engines.simulated.engine import resolve
from autotune.models.config import RefusedConfig
from autotune.models.memory import plan_memory, startup_failure
from autotune.pipeline import gpus_of, read_study
from autotune.records.spec import Args, EngineKind, EngineSpec, HardwareSpec, SimulateSpec, StudySpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Role
from autotune.search.gate import Gate, Source, common_gpu, make_gate
from autotune.space import RuledOut
from tests.builders import study_spec, trial
from tests.fakes import ScriptedEngine, ScriptedPreflight, failure


def simulated(model: str = "meta-llama/Llama-3.1-8B", gpu: str = "h100", gpus: int = 1, **args: Any) -> StudySpec:
    engine = EngineSpec(kind=EngineKind.SIMULATED, args=args, simulate=SimulateSpec(gpu=gpu))
    return study_spec(model=model, engine=engine, hardware=HardwareSpec(gpus=tuple(range(gpus))))


def gate_of(spec: StudySpec, told: list[str] | None = None) -> Gate:
    engine, told = engine_for(spec), [] if told is None else told
    with engine.preflight(gpus=gpus_of(spec), tell=told.append) as preflight:
        return make_gate(spec, engine, gpus_of(spec), preflight, told.append)


def who(gate: Gate, args: Args) -> Source | None:
    exclusion = gate.exclude(args)
    return exclusion.source if exclusion else None


@pytest.mark.parametrize(
    ("spec", "args", "source", "outcome"),
    [
        (simulated(), {"max_model_len": 1024}, None, None),
        (simulated(), {"max_model_len": 100}, Source.MODEL, Outcome.BAD_CONFIG),
        (simulated(), {"tensor_parallel_size": 2}, Source.MODEL, Outcome.BAD_CONFIG),
        (simulated("meta-llama/Llama-3.1-70B"), {}, Source.MEMORY, Outcome.OOM_STARTUP),
        (simulated(), {"max_num_seqs": 64, "max_num_batched_tokens": 32}, Source.PREFLIGHT, Outcome.BAD_CONFIG),
    ],
)
def test_each_source_excludes_what_is_its_business(
    spec: StudySpec, args: Mapping[str, Any], source: Source | None, outcome: Outcome | None
) -> None:
    exclusion = gate_of(spec).exclude(args)
    assert (exclusion.source if exclusion else None) is source
    if exclusion:
        assert (exclusion.failure.outcome, exclusion.failure.fault) == (outcome, Fault.CANDIDATE)
        assert exclusion.failure.cause
        assert exclusion.failure.remedy


SETUPS = [
    ("meta-llama/Llama-3.1-8B", "l40s", 1),
    ("meta-llama/Llama-3.1-70B", "h100", 4),
    ("Qwen/Qwen3-32B", "a100", 2),
    ("Qwen/Qwen2.5-0.5B", "h200", 2),
    ("Qwen/Qwen3-8B", "b200", 1),
]


def study_of(folder: Path, model: str, gpu: str, gpus: int) -> StudySpec:
    path = folder / "study.yaml"
    path.write_text(
        f"name: x\nmodel: {model}\nengine: {{kind: simulated, simulate: {{gpu: {gpu}}}}}\nsearch_space: vllm/default\n"
        f"objective: chat\nquality: unchecked\nhardware: {{gpus: {[*range(gpus)]}}}\n"
    )
    return read_study(path)


@pytest.mark.parametrize(("model", "gpu", "gpus"), SETUPS)
def test_no_candidate_of_a_shipped_space_that_the_simulator_launches_is_excluded(
    tmp_path: Path, model: str, gpu: str, gpus: int
) -> None:
    spec = study_of(tmp_path, model, gpu, gpus)
    candidates, gate, rng = space.build_space(spec, gpus=gpus), gate_of(spec), random.Random(3)
    launchable = 0
    for _ in range(150):
        drawn = candidates.sample(rng, ends_ratio=0.3)
        if isinstance(drawn, RuledOut):
            continue
        try:
            config = resolve(spec, drawn.args)
        except RefusedConfig:
            continue
        memory = plan_memory(config)
        if startup_failure(config, memory) is None and config.tp <= gpus:
            launchable += 1
            assert gate.exclude(drawn.args) is None, drawn.args
            # What the launch tells narrows the margin for those that follow.
            gate.ran(replace(trial(launchable, args=drawn.args), resolved={"kv_cache_tokens": memory.kv_tokens}))
    assert launchable > 10
    assert (gate.model, gate.memory, gate.preflight).count(None) == 0


def test_the_memory_model_is_for_gpus_of_one_kind_that_the_engine_was_built_for() -> None:
    h100 = Gpu(id="0", name="NVIDIA H100 80GB HBM3", memory_bytes=85 * 10**9)
    known = common_gpu("12.8", [h100, replace(h100, id="1")])
    assert known is not None
    assert (known.name, known.memory_bytes) == ("h100", 85 * 10**9)
    assert common_gpu(None, [h100]) is None  # a build for CPUs
    assert common_gpu("12.8", []) is None
    assert common_gpu("12.8", [h100, Gpu(id="1", name="NVIDIA L40S")]) is None
    assert common_gpu("12.8", [Gpu(id="0", name="NVIDIA GeForce RTX 4090")]) is None
    assert common_gpu("12.8", [Gpu(id="MIG-1")]) is None


def test_without_a_gpu_nothing_is_excluded_for_its_memory() -> None:
    spec = study_spec(engine=EngineSpec(kind=EngineKind.VLLM), model="meta-llama/Llama-3.1-70B")
    gate = make_gate(spec, ScriptedEngine(lambda *_: 1.0), (), None, print)
    assert gate.memory is None
    assert gate.exclude({"max_model_len": 1024}) is None


def test_an_engine_with_other_arguments_is_asked_only_itself() -> None:
    spec = replace(study_spec(), engine=EngineSpec(kind=EngineKind.TENSORRT_LLM))
    gate = make_gate(spec, ScriptedEngine(lambda *_: 1.0), (), None, print)
    assert gate.exclude({"tensor_parallel_size": 3}) is None


def refusing(*, seqs: int) -> ScriptedPreflight:
    def check(args: Args) -> Failure | None:
        return failure(Outcome.BAD_CONFIG) if args["max_num_seqs"] >= seqs else None

    return ScriptedPreflight(check)


def test_a_source_that_would_exclude_what_ran_is_not_asked_again() -> None:
    told: list[str] = []
    gate = Gate(model=None, memory=None, preflight=refusing(seqs=10), tell=told.append)
    assert who(gate, {"max_num_seqs": 16}) is Source.PREFLIGHT
    gate.ran(trial(1, args={"max_num_seqs": 8}))
    gate.ran(trial(2, args={"max_num_seqs": 99}, outcome=Outcome.OOM_STARTUP))
    assert who(gate, {"max_num_seqs": 16}) is Source.PREFLIGHT
    assert told == []
    gate.ran(trial(3, args={"max_num_seqs": 12}))
    assert who(gate, {"max_num_seqs": 16}) is None
    assert len(told) == 1
    assert "scripted bad_config" in told[0]


def test_a_memory_model_that_is_proven_wrong_learns_or_goes() -> None:
    told: list[str] = []
    gate = gate_of(simulated("meta-llama/Llama-3.1-70B"), told)
    assert who(gate, {}) is Source.MEMORY
    gate.ran(trial(1, args={}))  # it runs, and says nothing of its cache
    assert who(gate, {}) is None
    assert gate.memory is None
    assert "memory model" in told[0]


def test_the_reference_is_not_asked_before_it_ran() -> None:
    """A gate asks its sources about what ran only when it is asked itself: meanwhile the engine's check gets ready."""
    asked: list[Args] = []

    def check(args: Args) -> Failure | None:
        asked.append(args)
        return None

    gate = Gate(model=None, memory=None, preflight=ScriptedPreflight(check), tell=print)
    gate.ran(trial(0, args={"a": 1}, role=Role.REFERENCE))
    assert asked == []
    gate.exclude({"a": 2})
    assert asked == [{"a": 1}, {"a": 2}]


def test_candidates_are_what_is_asked_about() -> None:
    candidate = Candidate(params={}, args={"max_num_seqs": 12}, role=Role.SEARCH, fingerprint="f")
    assert who(Gate(model=None, memory=None, preflight=refusing(seqs=12), tell=print), candidate.args)
