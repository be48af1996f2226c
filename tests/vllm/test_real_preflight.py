"""The real vLLM's configuration is asked: one import, no launch, milliseconds a question."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from autotune.engines.base import Refusal, Resolved
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Fault, Outcome
from tests.builders import study_spec

pytestmark = pytest.mark.vllm

GOOD = {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": 1024, "enable_prefix_caching": False}
QUESTIONS = 50


def test_the_real_configuration_accepts_refuses_and_resolves(vllm_venv: Path) -> None:
    env = {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"}
    spec = EngineSpec(kind=EngineKind.VLLM, command=(str(vllm_venv / "bin/vllm"),), env=env)
    told: list[str] = []
    begun = time.monotonic()
    engine = VllmEngine(study_spec(model=str(vllm_venv / "tiny-model"), engine=spec))
    with engine.preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is not None
        assert time.monotonic() - begun < 2
        good = preflight.ask(GOOD)
        first_s, begun = time.monotonic() - begun, time.monotonic()
        for seqs in range(QUESTIONS):
            assert isinstance(preflight.ask({**GOOD, "max_num_seqs": seqs + 1}), Resolved)
        each_ms = (time.monotonic() - begun) / QUESTIONS * 1e3
        too_many = preflight.ask({"max_num_seqs": 64, "max_num_batched_tokens": 32})
        unknown = preflight.ask({"quantization": "fp7"})
        flag = preflight.ask({"max_num_seqz": 8})
        heads = preflight.ask({"tensor_parallel_size": 3})
    sys.stdout.write(f"first answer after {first_s:.1f} s, then {each_ms:.1f} ms a question\n")
    assert told == []
    assert isinstance(good, Resolved)
    assert {name: good.settings[name] for name in GOOD} == GOOD
    assert good.settings["block_size"] > 0
    assert isinstance(good.settings["async_scheduling"], bool)
    for answer, words in (
        (too_many, "Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)."),
        (unknown, "Value error, Unknown quantization method: fp7."),
        (heads, "Total number of attention heads (8) must be divisible by tensor parallel size (3)."),
    ):
        assert isinstance(answer, Refusal)
        assert words in answer.failure.cause
        assert (answer.failure.outcome, answer.failure.fault) == (Outcome.BAD_CONFIG, Fault.CANDIDATE)
    assert isinstance(flag, Refusal)
    assert flag.failure.fault is Fault.SETUP
