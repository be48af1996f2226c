"""The first trial beside the reference is the closed form of `trtllm-bench`."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autotune.engines.tensorrt_llm.suggestions import batch_limits, suggested
from autotune.models.shapes import gpu_of, shape_of
from autotune.records.spec import EngineKind, EngineSpec, SimulateSpec
from tests.builders import study_spec

SHAPE, GPU = shape_of("meta-llama/Llama-3.1-8B-Instruct"), gpu_of("h100", "tensorrt_llm")
assert SHAPE is not None
assert GPU is not None
TOKEN_BYTES = 2 * 32 * 8 * 128 * 2  # keys and values of 32 layers, 8 heads of 128, two bytes each


@pytest.mark.parametrize(
    ("input_tokens", "output_tokens", "batch", "tokens"),
    [
        (2000, 2000, 128, 2048),  # 121 requests of 4,000 tokens fit, and each brings one prompt token a step
        (100, 100, 2560, 5120),
        (4000, 100, 128, 5120),
    ],
)
def test_batch_and_tokens_follow_from_what_the_kv_cache_holds(
    input_tokens: int, output_tokens: int, batch: int, tokens: int
) -> None:
    assert SHAPE is not None
    assert GPU is not None
    requests = (GPU.memory_bytes - 2 * SHAPE.parameters) * 0.95 / (TOKEN_BYTES * (input_tokens + output_tokens))
    found = batch_limits(SHAPE, GPU, gpus=1, kv_dtype="auto", input_tokens=input_tokens, output_tokens=output_tokens)
    assert found == (batch, tokens)
    assert found[0] >= requests  # slightly optimistic


def test_a_model_that_does_not_fit_suggests_nothing() -> None:
    assert SHAPE is not None
    assert GPU is not None
    tiny = replace(GPU, memory_bytes=2**30)
    assert batch_limits(SHAPE, tiny, gpus=1, kv_dtype="auto", input_tokens=10, output_tokens=10) is None


def test_an_fp8_cache_holds_twice_the_requests() -> None:
    assert SHAPE is not None
    assert GPU is not None
    both = [
        batch_limits(SHAPE, GPU, gpus=1, kv_dtype=kv, input_tokens=500, output_tokens=500) for kv in ("auto", "fp8")
    ]
    assert both == [(512, 2048), (1024, 2048)]


def test_nothing_is_suggested_for_an_unknown_model() -> None:
    engine = EngineSpec(kind=EngineKind.TENSORRT_LLM, simulate=SimulateSpec(gpu="h100", face="server"))
    spec = study_spec(engine=engine)
    assert [sorted(args) for args in suggested(spec, ("0",))] == [
        ["enable_chunked_prefill", "max_batch_size", "max_num_tokens"]
    ]
    assert list(suggested(replace(spec, model="nobody/nothing"), ("0",))) == []
