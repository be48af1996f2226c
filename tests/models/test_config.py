"""vLLM's defaults and refusals, shapes, memory and start-up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.models.config import GIB, RefusedConfig, from_vllm_args, unmodelled
from autotune.models.memory import StartupPhase, kv_token_bytes, plan_memory, startup_failure
from autotune.models.shapes import gpu_names, gpu_of, model_names, shape_of
from autotune.models.startup import startup_time
from tests.models.setups import config, gpu, shape


@pytest.mark.parametrize(
    ("gpu_name", "args", "seqs", "tokens"),
    [
        ("h100", {}, 1024, 8192),
        ("a100", {}, 256, 2048),
        ("l40s", {}, 256, 2048),
        ("h100", {"max_num_batched_tokens": 512}, 512, 512),
        ("h100", {"max_num_seqs": 4}, 4, 4096),
        ("h100", {"performance_mode": "throughput"}, 2048, 16384),
        ("l40s", {"enable_chunked_prefill": False, "max_model_len": 4096}, 256, 4096),
        ("h100", {"max_num_batched_tokens": "4k", "max_num_seqs": 1}, 1, 4000),
    ],
)
def test_batch_limits_default_as_in_vllm(gpu_name: str, args: dict[str, Any], seqs: int, tokens: int) -> None:
    found = from_vllm_args({"max_model_len": 1024, **args}, shape(), gpu(gpu_name))

    assert (found.max_num_seqs, found.max_num_batched_tokens) == (seqs, tokens)


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"max_num_batched_tokens": 32, "max_num_seqs": 64}, "greater than or equal to max_num_seqs"),
        ({"max_num_batched_tokens": 512, "enable_chunked_prefill": False}, "smaller than max_model_len"),
        ({"tensor_parallel_size": 3}, "divisible by tensor parallel size"),
        ({"max_model_len": 10**6}, "greater than the derived max_model_len"),
        ({"long_prefill_token_threshold": 2048}, "cannot be greater than the max_model_len"),
        ({"block_size": 17}, "multiple of 16"),
        ({"gpu_memory_utilization": 1.2}, "GPU memory utilization"),
        ({"pipeline_parallel_size": 2}, "not simulated"),
        ({"optimization_level": 7}, "optimization_level"),
        ({"max_num_seqs": 0}, "at least 1"),
        ({"max_num_seqs": "many"}, "not a size"),
    ],
)
def test_impossible_combinations_are_refused(args: dict[str, Any], says: str) -> None:
    with pytest.raises(RefusedConfig, match=says):
        config(**args)


def test_fp8_kv_needs_hardware_for_it() -> None:
    with pytest.raises(RefusedConfig, match=r"8\.9"):
        from_vllm_args({"kv_cache_dtype": "fp8"}, shape(), gpu("a100"))


def test_the_word_none_is_no_quantisation() -> None:
    assert config(quantization="None").weights == "bf16"
    assert config(quantization="fp8").weights == "fp8"
    assert config(quantization="awq").weights == "int4"


@pytest.mark.parametrize(
    "args", [{"enforce_eager": True}, {"optimization_level": 0}, {"compilation_config": {"cudagraph_mode": "NONE"}}]
)
def test_three_ways_to_do_without_graphs(args: dict[str, Any]) -> None:
    assert config(**args).eager
    assert not config().eager


def test_unknown_arguments_are_named() -> None:
    assert unmodelled({"max_num_seqs": 4, "seed": 3}) == ["seed"]


def test_all_shipped_shapes_and_gpus_can_be_read() -> None:
    assert all(shape_of(name) is not None for name in model_names())
    assert all(gpu_of(name, engine) is not None for name in gpu_names() for engine in ("vllm", "tensorrt_llm"))
    assert gpu_of("H100-SXM") == gpu_of("h100")
    assert gpu_of("tpu") is None


def test_llama_8b_has_8_billion_parameters() -> None:
    assert shape().parameters == pytest.approx(8.03e9, rel=1e-3)
    assert shape("meta-llama/Llama-3.1-70B").parameters == pytest.approx(70.55e9, rel=1e-3)
    assert shape("autotune/tiny").parameters == pytest.approx(23e6, rel=0.05)


def test_a_folder_tells_its_shape(tmp_path: Path) -> None:
    facts: dict[str, Any] = {
        "hidden_size": 512,
        "num_hidden_layers": 6,
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "intermediate_size": 1536,
        "vocab_size": 8192,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": True,
    }
    (tmp_path / "config.json").write_text(json.dumps(facts))
    found = shape_of(str(tmp_path))
    assert found is not None
    assert found.parameters == shape("autotune/tiny").parameters

    (tmp_path / "config.json").write_text(json.dumps(facts | {"quantization_config": {"quant_method": "fp8"}}))
    quantised = shape_of(str(tmp_path))
    assert quantised is not None
    assert quantised.weight_format == "fp8"

    (tmp_path / "config.json").write_text("{}")
    assert shape_of(str(tmp_path)) is None


def test_kv_bytes_of_a_token_follow_heads_and_dtype() -> None:
    assert kv_token_bytes(config()) == 2 * 8 * 128 * 2 * 32
    assert kv_token_bytes(config(kv_cache_dtype="fp8")) == 8 * 128 * 2 * 32
    assert kv_token_bytes(config(tensor_parallel_size=2)) == 8 * 128 * 2 * 32


def test_the_kv_cache_gets_what_the_rest_leaves() -> None:
    plan = plan_memory(config())
    spent = plan.weights_bytes + plan.activation_bytes + plan.other_bytes + plan.kv_bytes

    assert spent == pytest.approx(0.92 * 80 * GIB)
    assert plan.blocks == int(plan.kv_bytes // (16 * plan.kv_token_bytes)) - 1


@pytest.mark.parametrize(
    ("model", "gpu_name", "args", "phase"),
    [
        ("meta-llama/Llama-3.1-8B", "h100", {}, None),
        ("meta-llama/Llama-3.1-8B", "h100", {"gpu_memory_utilization": 1.0}, StartupPhase.FREE_MEMORY),
        ("meta-llama/Llama-3.1-70B", "h100", {}, StartupPhase.WEIGHTS),
        ("Qwen/Qwen3-32B", "h100", {"max_num_batched_tokens": 262144}, StartupPhase.PROFILE),
        ("meta-llama/Llama-3.1-8B", "h100", {"gpu_memory_utilization": 0.2}, StartupPhase.KV_ALLOCATION),
        ("meta-llama/Llama-3.1-8B", "l40s", {"max_model_len": 131072, "gpu_memory_utilization": 0.6},
         StartupPhase.KV_TOO_SMALL),
        ("meta-llama/Llama-3.1-8B", "h100", {"gpu_memory_utilization": 0.99}, StartupPhase.GRAPH_CAPTURE),
        ("meta-llama/Llama-3.1-8B", "h100",
         {"gpu_memory_utilization": 0.985, "max_num_seqs": 4096, "enforce_eager": True}, StartupPhase.SAMPLER_WARMUP),
    ],
)  # fmt: skip
def test_each_phase_of_a_start_up_can_run_out_of_memory(
    model: str, gpu_name: str, args: dict[str, Any], phase: StartupPhase | None
) -> None:
    resolved = from_vllm_args({"max_model_len": 8192, **args}, shape(model), gpu(gpu_name))
    failure = startup_failure(resolved, plan_memory(resolved))

    assert (failure.phase if failure else None) == phase


def test_the_length_that_would_fit_starts() -> None:
    args = {"gpu_memory_utilization": 0.6, "max_model_len": 131072}
    failing = from_vllm_args(args, shape(), gpu("l40s"))
    failure = startup_failure(failing, plan_memory(failing))
    assert failure is not None
    length = int(failure.cause.split("estimated maximum model length is ")[1].split(".")[0])

    fitting = from_vllm_args(args | {"max_model_len": length}, shape(), gpu("l40s"))

    assert startup_failure(fitting, plan_memory(fitting)) is None


def test_a_warm_start_is_shorter_and_an_eager_one_compiles_nothing() -> None:
    def total(cold: bool, **args: Any) -> float:
        cfg = config(**args)
        return startup_time(cfg, plan_memory(cfg), compile_cold=cold, pages_cold=cold).total_s

    assert total(False) < total(True) - 10
    assert total(True, enforce_eager=True) < total(True) - 20
