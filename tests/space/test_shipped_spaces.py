"""The shipped spaces on the machines and workloads they are made for."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

from autotune.records.spec import StudySpec
from autotune.records.trial import Candidate
from autotune.space import build_space, space_problems
from autotune.study import load_study, shipped_objectives, shipped_spaces

ROOT = Path(__file__).parents[2]
OTHERS = ("vllm/cpu", "tensorrt_llm/default", "triton/default")
PAIRS = [  # the CPU's space is made for the short prompts of its objective
    *((space, objective) for space in shipped_spaces() if space not in OTHERS for objective in shipped_objectives()),
    ("vllm/cpu", "cpu-smoke"),
]


def _study(folder: Path, space: str, objective: str, more: str = "") -> StudySpec:
    path = folder / "study.yaml"
    kind = space.partition("/")[0]
    path.write_text(
        f"name: x\nmodel: m\nengine: {{kind: {kind}}}\nsearch_space: {space}\nobjective: {objective}\n{more}"
    )
    return load_study(path, checks=[space_problems])


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize(("space", "objective"), PAIRS)
def test_a_fair_share_of_random_proposals_can_be_launched(
    tmp_path: Path, space: str, objective: str, gpus: int
) -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    ready = build_space(_study(tmp_path, space, objective), gpus=gpus)
    search = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    candidates = [made for _ in range(100) if isinstance(made := ready.suggest(search.ask()), Candidate)]
    assert len(candidates) > 40
    for candidate in candidates:
        assert candidate.args["max_num_batched_tokens"] >= candidate.args["max_num_seqs"]
        assert candidate.args.get("tensor_parallel_size", 1) <= max(gpus, 1)
        assert candidate.args["max_model_len"] > 0
        assert "quantization" not in candidate.args


TRTLLM = [objective for objective in shipped_objectives() if objective != "cpu-smoke"]


@pytest.mark.parametrize("gpus", [0, 1, 8])
@pytest.mark.parametrize("objective", TRTLLM)
@pytest.mark.parametrize("space", ["tensorrt_llm/default", "triton/default"])
def test_a_fair_share_of_random_proposals_for_tensorrt_llm_can_be_launched(
    tmp_path: Path, space: str, objective: str, gpus: int
) -> None:
    ready = build_space(_study(tmp_path, space, objective, "quality: unchecked\n"), gpus=gpus)
    rng = random.Random(0)
    candidates = [made for _ in range(200) if isinstance(made := ready.sample(rng), Candidate)]
    assert len(candidates) > 40
    for candidate in candidates:
        args = candidate.args
        sizes = args.get("tensor_parallel_size", 1) * args.get("pipeline_parallel_size", 1)
        assert sizes <= max(gpus, 1)
        assert args["cuda_graph_config"]["max_batch_size"] == args["max_batch_size"]
        assert not any("moe" in name for name in args)
        if args["speculative_config"]["decoding_type"] == "None":
            assert set(args["speculative_config"]) == {"decoding_type"}


def test_experts_open_the_branch_for_them(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"num_local_experts": 8}')
    spec = _study(tmp_path, "tensorrt_llm/default", "chat")
    ready = build_space(replace(spec, model=str(tmp_path)), gpus=8)
    assert {"moe_expert_parallel_size", "moe_config.backend"} <= set(ready.distributions())
    rng = random.Random(0)
    for candidate in (made for _ in range(100) if isinstance(made := ready.sample(rng), Candidate)):
        assert candidate.args["tensor_parallel_size"] % candidate.args["moe_expert_parallel_size"] == 0


def test_the_default_space_has_what_matters(tmp_path: Path) -> None:
    ready = build_space(_study(tmp_path, "vllm/default", "chat", "quality: unchecked\n"), gpus=8)
    assert set(ready.distributions()) == {
        "tensor_parallel_size", "gpu_memory_utilization", "max_num_batched_tokens", "max_num_seqs",
        "enable_chunked_prefill", "long_prefill_token_threshold", "enable_prefix_caching", "block_size",
        "optimization_level", "async_scheduling", "stream_interval", "quantization", "kv_cache_dtype",
    }  # fmt: skip
    assert ready.derived == {"max_model_len": 7500}


def test_the_cpu_space_leaves_start_up_alone(tmp_path: Path) -> None:
    ready = build_space(_study(tmp_path, "vllm/cpu", "cpu-smoke"), gpus=0)
    assert set(ready.distributions()) == {
        "max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "long_prefill_token_threshold",
        "enable_prefix_caching", "block_size",
    }  # fmt: skip
    assert ready.notes == ()


@pytest.mark.parametrize("path", sorted(ROOT.glob("studies/*.yaml")), ids=lambda path: path.stem)
def test_every_example_study_has_a_sound_space(path: Path) -> None:
    spec = load_study(path, checks=[space_problems])
    assert build_space(spec, gpus=1).dimensions
