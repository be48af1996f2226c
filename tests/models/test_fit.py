"""The memory model excludes what is certain not to fit, and nothing that starts."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from autotune.models.config import RefusedConfig, SchedulerConfig, from_vllm_args
from autotune.models.fit import CALIBRATED_MARGIN, MARGIN, Fit, cut
from autotune.models.memory import plan_memory, startup_failure
from tests.models.setups import gpu, shape

MODELS = ("meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-70B", "Qwen/Qwen3-32B", "Qwen/Qwen2.5-0.5B")
GPUS = ("h100", "h200", "a100", "l40s", "b200")


def drawn(rng: random.Random) -> dict[str, Any]:
    """Arguments as search spaces have them, and bolder ones."""
    return {
        "tensor_parallel_size": rng.choice([1, 2, 4, 8]),
        "gpu_memory_utilization": rng.choice([0.2, 0.5, 0.8, 0.9, 0.95, 0.99]),
        "max_num_batched_tokens": rng.choice([2048, 8192, 65536, 524288]),
        "max_num_seqs": rng.choice([16, 256, 1024]),
        "max_model_len": rng.choice([1024, 16384, 32768]),
        "quantization": rng.choice([None, "fp8"]),
        "kv_cache_dtype": rng.choice(["auto", "fp8"]),
        "enforce_eager": rng.choice([True, False]),
    } | ({"kv_cache_memory_bytes": rng.choice([10**8, 10**10, 10**11])} if rng.random() < 0.2 else {})


def setups() -> Iterator[tuple[Fit, dict[str, Any], SchedulerConfig]]:
    rng = random.Random(7)
    for model in MODELS:
        for name in GPUS:
            fit = Fit(shape=shape(model), gpu=gpu(name))
            for _ in range(60):
                args = drawn(rng)
                try:
                    yield fit, args, from_vllm_args(args, fit.shape, fit.gpu)
                except RefusedConfig:
                    continue


@pytest.mark.parametrize("needed", [1 - MARGIN, 1 - CALIBRATED_MARGIN])
def test_what_the_simulator_starts_is_never_excluded_and_much_of_the_rest_is(needed: float) -> None:
    started = excluded = failed = 0
    for fit, args, config in setups():
        starts = startup_failure(config, plan_memory(config)) is None
        refused = replace(fit, needed=needed).too_large(args) is not None
        assert not (starts and refused), (fit.shape.name, fit.gpu.name, args)
        started, failed, excluded = started + starts, failed + (not starts), excluded + refused
    assert started > 200
    assert failed > 200
    assert excluded > failed / 2


def test_the_reason_tells_the_figures() -> None:
    why = Fit(shape=shape("meta-llama/Llama-3.1-70B"), gpu=gpu()).too_large({})
    assert why is not None
    assert "weights 131." in why
    assert "80.0 GiB on each h100" in why
    long = Fit(shape=shape("meta-llama/Llama-3.1-8B"), gpu=gpu("l40s")).too_large({"gpu_memory_utilization": 0.5})
    assert long is not None  # the default length is the model's
    assert "max_model_len 131072 takes 16.0 GiB of KV cache" in long


@pytest.mark.parametrize("name", ["cpu_offload_gb", "hf_overrides", "kv_offloading_size", "speculative_config"])
def test_arguments_that_the_model_does_not_count_with_silence_it(name: str) -> None:
    fit = Fit(shape=shape("meta-llama/Llama-3.1-70B"), gpu=gpu())
    assert fit.too_large({}) is not None
    assert fit.too_large({name: 1}) is None


def test_what_vllm_refuses_for_another_reason_is_not_a_matter_of_memory() -> None:
    fit = Fit(shape=shape("meta-llama/Llama-3.1-70B"), gpu=gpu())
    assert fit.too_large({"pipeline_parallel_size": 2}) is None


def test_the_margin_lies_between_what_is_excluded_and_what_is_not() -> None:
    """Demands that miss the room by less than the margin are left to the engine."""
    fit = Fit(shape=shape("meta-llama/Llama-3.1-8B"), gpu=gpu())
    base = plan_memory(from_vllm_args({"max_model_len": 1024}, fit.shape, fit.gpu))
    demand = base.weights_bytes + base.activation_bytes + base.other_bytes
    for share, refused in ((0.9, False), (0.8, True)):
        small = replace(fit.gpu, memory_bytes=int(demand * share / 0.92))
        # the memory decides about vLLM's default batch, so it is given
        args = {"max_model_len": 1024, "max_num_seqs": 1024, "max_num_batched_tokens": 8192}
        assert (replace(fit, gpu=small).too_large(args) is not None) is refused


def launched(fit: Fit, demand_ratio: float) -> tuple[dict[str, Any], dict[str, Any]]:
    """A launch whose demands were `demand_ratio` times those predicted."""
    args: dict[str, Any] = {"max_model_len": 1024}
    config = from_vllm_args(args, fit.shape, fit.gpu)
    plan = cut(config, plan_memory(config), demand_ratio)
    return args, {"kv_cache_tokens": int(plan.kv_bytes // plan_memory(config).kv_token_bytes)}


def test_launched_engines_narrow_the_margin_and_bear_a_model_that_demands_too_much() -> None:
    fit = Fit(shape=shape("meta-llama/Llama-3.1-8B"), gpu=gpu())
    assert fit.calibrated([]).needed == fit.needed == 1 - MARGIN
    exact = launched(fit, 1.0)
    assert fit.calibrated([exact]).needed == pytest.approx(1 - MARGIN, rel=1e-3)
    assert fit.calibrated([exact] * 3).needed == pytest.approx(1 - CALIBRATED_MARGIN, rel=1e-3)
    assert fit.calibrated([launched(fit, 1.3)] * 3).needed == pytest.approx(1 - CALIBRATED_MARGIN, rel=1e-3)
    lean = [exact, exact, launched(fit, 0.6)]
    assert fit.calibrated(lean).needed == pytest.approx(0.6 * (1 - CALIBRATED_MARGIN), rel=1e-3)


def test_a_launch_that_tells_nothing_of_its_cache_calibrates_nothing() -> None:
    fit = Fit(shape=shape("meta-llama/Llama-3.1-8B"), gpu=gpu())
    given = ({"kv_cache_memory_bytes": 10**9}, {"kv_cache_tokens": 7000})
    assert fit.calibrated([({}, {}), given, ({"hf_overrides": {}}, {"kv_cache_tokens": 9})]).needed == fit.needed
