"""What runs in production is read from a YAML or from a copied command line."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from autotune.engines.vllm import render_yaml
from autotune.engines.vllm.incumbent import read_incumbent
from autotune.errors import InputError
from tests.engines.test_flags import ARGS

COMMAND = """
# copied from the unit file
HF_HOME=/models CUDA_VISIBLE_DEVICES=0,1 vllm serve meta-llama/Llama-3.1-8B-Instruct \\
    --host 0.0.0.0 --port 8000 --api-key sk-secret --served-model-name llama main \\
    --max-num-seqs 128 --max_num_batched_tokens=8k --max-model-len 16K -tp 2 -O3 \\
    --no-enable-prefix-caching --enforce-eager --gpu-memory-utilization 0.95 \\
    --compilation-config '{"mode": 3}' --kv-cache-dtype fp8 2>&1 | tee log
"""
COMMAND_ARGS = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 8000,
    "max_model_len": 16384,
    "tensor_parallel_size": 2,
    "optimization_level": "3",
    "enable_prefix_caching": False,
    "enforce_eager": True,
    "gpu_memory_utilization": 0.95,
    "compilation_config": {"mode": 3},
    "kv_cache_dtype": "fp8",
}


def test_a_command_line_with_continuations_variables_and_short_flags() -> None:
    assert read_incumbent(COMMAND) == COMMAND_ARGS


@pytest.mark.parametrize(
    "text",
    [
        "docker run --gpus all -v /m:/m -p 8000:8000 --ipc=host vllm/vllm-openai:v0.11 --model org/m --max-num-seqs 64",
        "sudo docker run --rm registry.example:5000/vllm/vllm-openai@sha256:abc --model=org/m --max-num-seqs=64",
        "docker run vllm/vllm-openai:latest serve org/m --max-num-seqs 64",
        "python3 -m vllm.entrypoints.openai.api_server --model org/m --max-num-seqs 64",
        "python -m vllm.entrypoints.cli.main serve org/m --max-num-seqs 64",
        "/opt/venv/bin/vllm serve --max-num-seqs 64 -- org/m",
        "--max-num-seqs 64",
        "model: org/m\nmax-num-seqs: 64\nport: 8000",
        "# ours\nmax_num_seqs: 64\nserved-model-name: [a, b]\n",
    ],
)
def test_other_ways_to_write_the_same(text: str) -> None:
    assert read_incumbent(text) == {"max_num_seqs": 64}


def test_yaml_with_switches_that_are_off_and_nested_mappings() -> None:
    text = "no-enable-prefix-caching: true\nenforce_eager: false\nmax-model-len: 8k\ncompilation-config: {mode: 3}\n"
    assert read_incumbent(text) == {
        "enable_prefix_caching": False,
        "enforce_eager": False,
        "max_model_len": 8000,
        "compilation_config": {"mode": 3},
    }


@pytest.mark.parametrize("text", ["vllm serve m --max-num-seqz 8 --block-size x", "max-num-seqz: 8\nblock-size: x\n"])
def test_every_parameter_that_vllm_would_refuse_is_named_at_once(text: str) -> None:
    with pytest.raises(InputError) as caught:
        read_incumbent(text)
    assert "did you mean `max_num_seqs`?" in caught.value.message
    assert "`block_size`: 'x' is not a whole number" in caught.value.message


@pytest.mark.parametrize("text", ["", "  \n", "ls -l", "vllm serve 'unclosed", "a: [", "!!python/object:os.x {}"])
def test_what_is_no_incumbent_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        read_incumbent(text)


@settings(deadline=None)  # the first example reads the facts
@given(ARGS)
def test_reading_what_was_written_gives_it_back(args: dict[str, object]) -> None:
    """For numbers and switches; text such as `8k` is read as what vLLM makes of it, and `x: false` may need no word."""
    plain = {name: value for name, value in args.items() if isinstance(value, bool | int | float)}
    written = read_incumbent(render_yaml("m", plain))
    assert {n: v for n, v in plain.items() if v is not False} == {n: v for n, v in written.items() if v is not False}
    assert all(plain[name] == value for name, value in written.items())
