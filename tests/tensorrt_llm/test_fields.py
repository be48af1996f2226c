"""What the options file may hold is checked before a launch, with the right name beside a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from autotune.engines.tensorrt_llm.fields import complaint, documented_defaults, fields, known, similar
from autotune.engines.tensorrt_llm.incumbent import read_incumbent
from autotune.engines.tensorrt_llm.options import options
from autotune.engines.tensorrt_llm.rules import Setting, broken_rules
from autotune.errors import InputError, StudyFileError
from autotune.models.shapes import gpu_of
from autotune.pipeline import read_study
from autotune.records.spec import StudySpec


def study(tmp_path: Path, args: str = "{}", more: str = "") -> StudySpec:
    text = (
        "name: x\nmodel: meta-llama/Llama-3.1-8B-Instruct\n"
        f"engine:\n  kind: tensorrt_llm\n  simulate: {{gpu: h100, face: server}}\n  args: {args}\n"
        f"search_space: tensorrt_llm/default\nobjective: chat\n{more}"
    )
    path = tmp_path / "study.yaml"
    path.write_text(text)
    return read_study(path)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ("{max_num_seqs: 8}", "did you mean `max_batch_size`?"),
        ("{free_gpu_memory_fraction: 0.8}", "did you mean `kv_cache_config.free_gpu_memory_fraction`?"),
        ("{kv_cache_config: {dtypes: fp8}}", "`kv_cache_config.dtypes`; did you mean `kv_cache_config.dtype`?"),
        ("{kv_cache_config.dtype: fp7}", "'fp7' is not one of auto, fp8"),
        ("{max_batch_sise: 8}", "did you mean `max_batch_size`?"),
        ("{max_batch_size: many}", "'many' is not a whole number"),
        ("{max_batch_size: 0}", "0 is below 1"),
        ("{kv_cache_config: {free_gpu_memory_fraction: 1.5}}", "1.5 is above 1"),
        ("{enable_chunked_prefill: 1}", "1 is not true or false"),
        ("{cuda_graph_config: {batch_sizes: [1, two]}}", "is not a list of whole numbers"),
        ("{port: 8000}", "`port` belongs to the tuner"),
        ("{backend: tensorrt}", "only the pytorch backend is tuned"),
        ("{max_seq_len: 100}", "longest request takes"),
        ("{cuda_graph_config: {batch_sizes: [1], max_batch_size: 4}}", "not both"),
    ],
)
def test_a_wrong_argument_is_named_before_a_launch(tmp_path: Path, args: str, said: str) -> None:
    with pytest.raises(StudyFileError) as caught:
        study(tmp_path, args)
    assert any(said in line for line in caught.value.lines), caught.value.lines


@pytest.mark.parametrize(
    "args",
    [
        "{}",
        "{kv_cache_config: {dtype: fp8, free_gpu_memory_fraction: 0.85}, max_batch_size: 64}",
        "{model_kwargs: {anything: {at: all}}}",
        "{moe_config: {load_balancer: file.yaml}}",
    ],
)
def test_right_arguments_are_taken(tmp_path: Path, args: str) -> None:
    assert study(tmp_path, args).simulated


def test_options_of_a_container_that_are_the_tuners_and_faults_without_a_process_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    head = "name: x\nmodel: meta-llama/Llama-3.1-8B-Instruct\nsearch_space: tensorrt_llm/default\nobjective: chat\n"
    path.write_text(f"{head}engine: {{kind: tensorrt_llm, container: {{image: a/b, options: [--rm]}}}}\n")
    with pytest.raises(StudyFileError, match="`--rm` belongs to the tuner"):
        read_study(path)
    path.write_text(f"{head}engine: {{kind: tensorrt_llm, simulate: {{gpu: h100, faults: [oom_at_start]}}}}\n")
    with pytest.raises(StudyFileError, match="faults need a process"):
        read_study(path)


def test_every_shipped_default_is_one_that_the_checks_take() -> None:
    for name, value in documented_defaults().items():
        assert known(name)
        assert complaint(name, value) is None, name


def test_facts_are_of_a_shape_that_the_checks_know() -> None:
    kinds = {field.type for field in fields().values()}
    assert kinds <= {"bool", "int", "float", "str", "object", "dict", "any", "list[int]", "list[float]", "list[str]"}
    assert similar("zzz").startswith("the fields are those of TorchLlmArgs")


# --- rules over several fields ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("args", "broken"),
    [
        ({}, None),
        ({"tensor_parallel_size": 2, "pipeline_parallel_size": 2}, "takes 4 GPUs"),
        ({"tensor_parallel_size": 2, "moe_expert_parallel_size": 4}, "can't be divided"),
        ({"tensor_parallel_size": 2, "moe_expert_parallel_size": 2, "moe_tensor_parallel_size": 2}, "is not tensor"),
        ({"max_num_tokens": 1024}, "a prompt must fit max_num_tokens 1024"),
        ({"max_num_tokens": 1024, "enable_chunked_prefill": True}, None),
        ({"kv_cache_config": {"dtype": "fp8"}}, "an FP8 KV cache needs compute capability 8.9"),
        ({"kv_cache_config": {"dtype": "nvfp4"}}, "needs compute capability 10.0"),
        ({"speculative_config": {"decoding_type": "None"}, "pipeline_parallel_size": 2}, None),
        ({"speculative_config": {"decoding_type": "NGram"}, "pipeline_parallel_size": 2}, "speculative decoding is"),
        ({"speculative_config": {"decoding_type": "Medusa"}}, "has no Medusa"),
        ({"speculative_config": {"decoding_type": "Eagle3"}}, "needs speculative_config.speculative_model"),
        ({"attn_backend": "FLASHINFER", "kv_cache_config": {"enable_block_reuse": True}}, "turns kv_cache_config"),
    ],
)
def test_fields_that_do_not_go_together(args: dict[str, Any], broken: str | None) -> None:
    setting = Setting(args=args, gpus=2, gpu=gpu_of("a100"), longest_input_tokens=2000, longest_request_tokens=2500)
    found = [why for _, why in broken_rules(setting)]
    assert (not found) if broken is None else any(broken in why for why in found), found


def test_speculation_that_is_off_leaves_no_trace_in_the_file() -> None:
    asked = {"speculative_config": {"decoding_type": "None"}, "max_batch_size": 8}
    assert options(asked) == {"enable_iter_perf_stats": True, "max_batch_size": 8}
    assert options({"enable_iter_perf_stats": False}) == {"enable_iter_perf_stats": False}


# --- what runs today --------------------------------------------------------------------------------------------------


def test_a_command_line_from_production_is_read() -> None:
    line = (
        "trtllm-serve serve m --backend pytorch --host 0.0.0.0 --port 8000 --tp_size 2 \\\n --max_batch_size=64 "
        "--kv_cache_free_gpu_memory_fraction 0.85 --trust_remote_code"
    )
    assert read_incumbent(line) == {
        "tensor_parallel_size": 2,
        "max_batch_size": 64,
        "kv_cache_config.free_gpu_memory_fraction": 0.85,
        "trust_remote_code": True,
    }


def test_an_options_file_is_read_and_a_wrong_one_named() -> None:
    text = "max_batch_size: 64\nkv_cache_config:\n  dtype: fp8\n"
    assert read_incumbent(text) == {"max_batch_size": 64, "kv_cache_config": {"dtype": "fp8"}}
    for wrong in ("", "max_batch_sise: 3", "- 1", "a: [", "trtllm-serve m --config f.yaml", "max_num_tokens: x"):
        with pytest.raises(InputError):
            read_incumbent(wrong)
