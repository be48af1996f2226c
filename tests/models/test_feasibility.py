"""Rules from config.json: each refuses in words with the numbers, and says nothing where a figure is missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.models.facts import Machine, gpu_by_driver_name, model_config, model_folder, plain_decoder, weights_bytes
from autotune.models.feasibility import Setting, broken_rules
from tests.models.setups import gpu

GIB = 2**30
LLAMA: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 32,
    "num_attention_heads": 24,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 768 * 4,
    "max_position_embeddings": 8192,
}
BLOCKS = {"quant_method": "fp8", "weight_block_size": [128, 128]}
MIXTURE = {"architectures": ["Qwen3MoeForCausalLM"], "num_experts": 8, "num_experts_per_tok": 2}


def broken(
    args: Mapping[str, Any],
    config: Mapping[str, Any] | None = None,
    *,
    machine: Machine | None = None,
    longest: int | None = 1000,
) -> list[str]:
    setting = Setting(
        args=args,
        config={**LLAMA, **(config or {})},
        machine=machine or Machine(gpus=0),
        longest_request_tokens=longest,
    )
    return [*broken_rules(setting)]


@pytest.mark.parametrize(
    ("args", "config", "says"),
    [
        ({"tensor_parallel_size": 5}, {"num_key_value_heads": 5}, "24 attention heads can't be divided by"),
        ({"tensor_parallel_size": 3}, {}, "8 KV heads can neither be divided by tensor_parallel_size 3 nor copied"),
        ({"tensor_parallel_size": 12}, {}, "8 KV heads can neither be divided by tensor_parallel_size 12 nor copied"),
        ({"pipeline_parallel_size": 33}, {}, "33 is more than the model's 32 layers"),
        ({"enable_expert_parallel": True}, {}, "this one has none"),
        ({"enable_expert_parallel": True, "data_parallel_size": 16}, MIXTURE, "8 experts over 16 GPUs"),
        (
            {"tensor_parallel_size": 8},
            {"quantization_config": BLOCKS, "intermediate_size": 1536},
            "intermediate_size 1536 over tensor_parallel_size 8 is 192 a GPU, which is no multiple of",
        ),
        ({"max_model_len": 8193}, {}, "max_model_len 8193 is more than the model's 8192 positions"),
        ({"max_model_len": 999}, {}, "longest request takes 1000 tokens; max_model_len is 999"),
        ({}, {"max_position_embeddings": 512}, "takes 1000 tokens; the model's number of positions is 512"),
    ],
)
def test_what_can_not_start_or_serve_is_refused(args: dict[str, Any], config: dict[str, Any], says: str) -> None:
    reasons = broken(args, config)
    assert len(reasons) == 1
    assert says in reasons[0]


@pytest.mark.parametrize(
    ("args", "config"),
    [
        ({}, {}),
        ({"tensor_parallel_size": 4}, {}),
        ({"tensor_parallel_size": 24}, {}),  # each KV head on three GPUs
        ({"tensor_parallel_size": 3}, {"kv_lora_rank": 512}),
        ({"tensor_parallel_size": 3}, {"num_key_value_heads": None}),
        ({"tensor_parallel_size": 8}, {"quantization_config": BLOCKS}),
        ({"tensor_parallel_size": 8}, {"quantization_config": BLOCKS, "intermediate_size": 1536, **MIXTURE}),
        ({"enable_expert_parallel": True, "tensor_parallel_size": 8}, MIXTURE),
        ({"max_model_len": 16384}, {"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}),
        ({"max_model_len": 16384, "hf_overrides": {"max_position_embeddings": 16384}}, {}),
        ({"max_model_len": "auto"}, {}),
        ({"max_model_len": 8192}, {"rope_scaling": {"rope_type": "llama3"}}),
    ],
)
def test_what_may_run_is_not_refused(args: dict[str, Any], config: dict[str, Any]) -> None:
    assert broken(args, config) == []


def test_nothing_is_refused_of_a_model_of_which_nothing_is_known() -> None:
    args = {"tensor_parallel_size": 3, "pipeline_parallel_size": 50, "enable_expert_parallel": True}
    setting = Setting(args=args, config={}, machine=Machine(gpus=0), longest_request_tokens=None)
    assert [*broken_rules(setting)] == []


def test_parallelism_takes_gpus() -> None:
    two = Machine(gpus=2)
    assert broken({"tensor_parallel_size": 2}, machine=two) == []
    assert broken({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, machine=two) == [
        "tensor_parallel_size 2 x pipeline_parallel_size 2 takes 4 GPUs; the engine is given 2"
    ]
    assert broken({"tensor_parallel_size": 4, "distributed_executor_backend": "ray"}, machine=two) == []


def test_number_formats_need_a_gpu_that_has_them() -> None:
    volta = Machine(gpus=1, gpu=replace(gpu("a100"), name="v100", capability=70))
    assert "bfloat16 needs compute capability 8.0; v100 has 7.0" in broken({"dtype": "bfloat16"}, machine=volta)
    assert len(broken({"quantization": "fp8"}, machine=volta)) == 1
    ampere = Machine(gpus=1, gpu=gpu("a100"))
    assert broken({"dtype": "bfloat16", "quantization": "fp8"}, machine=ampere) == []


def test_offloading_takes_host_memory() -> None:
    host = Machine(gpus=2, host_memory_bytes=64 * GIB)
    assert broken({"cpu_offload_gb": 30, "tensor_parallel_size": 2}, machine=host) == []
    assert broken({"cpu_offload_gb": 40, "tensor_parallel_size": 2}, machine=host) == [
        "cpu_offload_gb 40 on 2 GPUs takes 80 GiB of host memory; there are 64 GiB"
    ]


def test_a_context_may_be_stretched_by_the_environment() -> None:
    setting = Setting(
        args={"max_model_len": 16384},
        config=LLAMA,
        machine=Machine(gpus=0),
        longest_request_tokens=9000,
        may_stretch=True,
    )
    assert [*broken_rules(setting)] == []


@pytest.mark.parametrize(
    ("name", "key"),
    [
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA A100-SXM4-80GB", "a100"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA GeForce RTX 4090", None),
        (None, None),
    ],
)
def test_a_gpu_is_known_by_the_drivers_name(name: str | None, key: str | None) -> None:
    found = gpu_by_driver_name(name, 40 * GIB)
    assert (found.name if found else None) == key
    assert found is None or found.memory_bytes == 40 * GIB  # what it has, not what the table says


def test_a_config_is_found_in_a_folder_and_in_the_hubs_cache(tmp_path: Path) -> None:
    snapshot = tmp_path / "hub" / "models--org--m" / "snapshots" / "abc"
    snapshot.mkdir(parents=True)
    (snapshot / "config.json").write_text('{"hidden_size": 8, "text_config": {"hidden_size": 16}}')
    (snapshot / "model-1.safetensors").write_bytes(b"12345")
    env = {"HF_HOME": str(tmp_path)}
    found = model_folder("org/m", env)
    assert found == snapshot
    assert (model_config(found) or {})["hidden_size"] == 16
    assert weights_bytes(found) == 5
    assert model_folder(str(snapshot), {}) == snapshot
    assert model_folder("org/other", env) is None
    (snapshot / "config.json").write_text("{")
    assert model_config(found) is None


def test_a_plain_decoder_attends_to_all_tokens() -> None:
    assert plain_decoder(LLAMA)
    assert plain_decoder({**LLAMA, "sliding_window": 4096, "use_sliding_window": False})
    assert not plain_decoder({**LLAMA, "sliding_window": 4096})
    assert not plain_decoder({**LLAMA, "architectures": ["DeepseekV3ForCausalLM"]})
    assert not plain_decoder({})
    assert not plain_decoder(None)
