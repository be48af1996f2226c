"""The engines that must pass the one contract, and the only places where they may differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune.engines.base import Engine, Server
from autotune.engines.net import port_free
from autotune.engines.simulated.tokens import decode
from autotune.engines.tensorrt_llm.engine import TensorRtLlmEngine
from autotune.engines.triton.engine import TritonEngine
from autotune.engines.vllm.engine import VllmEngine
from autotune.load.dialect import Dialect, Feature
from autotune.records.spec import EngineKind, EngineSpec, SimulateSpec, StudySpec
from autotune.records.trial import Candidate, Role
from tests.builders import study_spec
from tests.engines.children import gone
from tests.simulated.running import Client

ROOT = Path(__file__).parents[2]
VENV = ROOT / ".venv-vllm"

MAX_MODEL_LEN = 512
ARGS = {
    "max_num_seqs": 8,
    "max_num_batched_tokens": 512,
    "max_model_len": MAX_MODEL_LEN,
    "enable_prefix_caching": False,
    "enforce_eager": True,
}
"""Each of these differs from the engine's default."""

VOCAB_SIZE = 8192
TINY = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 512,
    "num_hidden_layers": 6,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "head_dim": 64,
    "intermediate_size": 1536,
    "vocab_size": VOCAB_SIZE,
    "max_position_embeddings": 4096,
    "tie_word_embeddings": True,
}
"""The config.json of the tiny model that the real vLLM serves: all that the simulated one needs of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tongue:
    """What kinds of engine call the same things: arguments that differ from their defaults, how they are resolved,
    metrics (`counts` grow by requests, prompt and output tokens, as far as the kind tells them), words.

    `dialect` None: it takes requests as vLLM does. `finish` is how an answer ends that was cut to length; `exact`: it
    heeds min_tokens and ignore_eos. `lists_model`: it serves under the model's own name."""

    kind: EngineKind
    engine: Callable[[StudySpec], Engine]
    args: dict[str, Any]
    resolved: dict[str, Any]
    version: str
    tells_length: bool
    metrics: frozenset[str]
    counts: tuple[str, ...]
    running: str | None
    generated: str | None
    prefix_hits: str | None
    counters: frozenset[str]
    warning: str
    words: tuple[str, ...]
    dialect: Dialect | None = None
    health_path: str = "/health"
    finish: str = "length"
    lists_model: bool = True
    exact: bool = True

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """A prompt in the form that it takes."""
        return list(ids) if self.dialect is None else decode(ids)

    def message(self, answer: Mapping[str, Any]) -> str:
        """What a refusal says, in the form that is its own."""
        if self.dialect is not None:
            return str(answer["detail"])
        assert {"message", "type", "param", "code"} <= answer["error"].keys()
        return str(answer["error"]["message"])


VLLM = Tongue(
    kind=EngineKind.VLLM,
    engine=VllmEngine,
    args=ARGS,
    resolved=ARGS,
    version="0.32.0",
    tells_length=True,
    metrics=frozenset(
        {
            "vllm:num_requests_running",
            "vllm:num_requests_waiting",
            "vllm:kv_cache_usage_perc",
            "vllm:num_preemptions_total",
            "vllm:prefix_cache_queries_total",
            "vllm:prefix_cache_hits_total",
            "vllm:prompt_tokens_total",
            "vllm:generation_tokens_total",
            "vllm:request_success_total",
            "vllm:time_to_first_token_seconds_count",
            "vllm:e2e_request_latency_seconds_sum",
        }
    ),
    counts=("vllm:request_success_total", "vllm:prompt_tokens_total", "vllm:generation_tokens_total"),
    running="vllm:num_requests_running",
    generated="vllm:generation_tokens_total",
    prefix_hits="vllm:prefix_cache_hits_total",
    counters=frozenset(
        {
            "server_requests",
            "server_prompt_tokens",
            "server_output_tokens",
            "server_preemptions",
            "server_running_max",
            "server_waiting_max",
            "server_kv_use_max_ratio",
            "server_ttft_mean_ms",
            "server_tpot_mean_ms",
            "server_queue_mean_ms",
            "server_prefill_mean_ms",
            "server_decode_mean_ms",
            "server_api_mean_ms",
            "server_outside_mean_ms",
            "server_step_mean_tokens",
        }
    ),
    warning="Enforce eager set",
    words=("--no-enable-prefix-caching", "--max-num-seqs", "8"),
)
TENSORRT_LLM = Tongue(
    kind=EngineKind.TENSORRT_LLM,
    engine=TensorRtLlmEngine,
    args={
        "max_batch_size": 8,
        "max_num_tokens": 512,
        "max_seq_len": MAX_MODEL_LEN,
        "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.5},
    },
    resolved={"max_batch_size": 8, "max_num_tokens": 512, "kv_cache_config.tokens_per_block": 32},
    version="1.2.1",
    tells_length=False,
    metrics=frozenset(
        {
            "trtllm:running_requests",
            "trtllm:waiting_requests",
            "trtllm:kv_cache_usage_ratio",
            "trtllm:completed_requests_total",
            "trtllm:reused_blocks_total",
        }
    ),
    counts=("trtllm:completed_requests_total",),
    running="trtllm:running_requests",
    generated=None,
    prefix_hits="trtllm:reused_blocks_total",
    counters=frozenset(
        {"server_preemptions", "server_running_max", "server_waiting_max", "server_kv_use_max_ratio",
         "server_step_mean_tokens"}
    ),
    warning="Both free_gpu_memory_fraction and max_tokens are set",
    words=("serve", "--config"),
)  # fmt: skip


TRITON = Tongue(
    kind=EngineKind.TRITON,
    engine=TritonEngine,
    args={
        **TENSORRT_LLM.args,
        "dynamic_batching": {"max_queue_delay_microseconds": 200, "preferred_batch_size": 4},
        "triton_config": {"max_batch_size": 8},
    },
    resolved=TENSORRT_LLM.resolved,
    version="2.73.0",
    tells_length=False,
    metrics=frozenset(
        {"triton:completed_requests_total", "triton:waiting_requests", "triton:executions_total",
         "triton:queue_seconds_sum", "triton:queue_seconds_count"}
    ),
    counts=("triton:completed_requests_total",),
    running=None,
    generated=None,
    prefix_hits=None,
    counters=frozenset({"server_waiting_max", "server_queue_mean_ms"}),
    warning=TENSORRT_LLM.warning,
    words=("--model-repository", "--openai-port"),
    dialect=Dialect(lacks=frozenset({Feature.PROMPT_IDS}), decode=decode),
    health_path="/health/ready",
    finish="stop",
    lists_model=False,
    exact=False,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """An engine under the contract. Where the two may differ, and why:

    - `command`, `env`, `model`: the real one needs weights and a cache; the simulated one only a config.json.
    - `simulated`: its version says so, since it must never be taken for a real one.
    - The tokens of a chat are those of template and tokenizer; the simulated one makes a token of a few letters. So
      the suite bounds a chat prompt's length, and compares counts only within one engine.
    - Both are the same for all else: what differs here is a fault of the simulated server.
    """

    name: str
    command: tuple[str, ...]
    env: dict[str, str]
    model: Callable[[Path], Path]
    simulated: bool
    absent: Callable[[], str | None] = lambda: None
    speaks: Tongue = field(default_factory=lambda: VLLM)


def _written_model(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(TINY))
    return folder


def _no_vllm() -> str | None:
    return None if (VENV / ".ready").exists() else "no real vLLM here: run `make vllm-env` first"


REAL = Contender(
    name="vllm",
    command=(str(VENV / "bin/vllm"),),
    env={"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    model=lambda _: VENV / "tiny-model",
    simulated=False,
    absent=_no_vllm,
)
SIMULATED = Contender(
    name="simulated",
    command=(sys.executable, "-m", "autotune.engines.simulated"),
    env={},
    model=_written_model,
    simulated=True,
)


TENSORRT_LLM_STAND_IN = Contender(
    name="tensorrt_llm",
    command=(sys.executable, "-m", "autotune.engines.simulated.trtllm"),
    env={},
    model=_written_model,
    simulated=True,
    speaks=TENSORRT_LLM,
)


TRITON_STAND_IN = Contender(
    name="triton",
    command=(sys.executable, "-m", "autotune.engines.simulated.triton"),
    env={},
    model=_written_model,
    simulated=True,
    speaks=TRITON,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A contender that is up, as the product sees it (`server`) and as any client does (`client`)."""

    contender: Contender
    server: Server
    client: Client
    model: str
    phases: list[str]

    @property
    def speaks(self) -> Tongue:
        """What its kind of engine calls things."""
        return self.contender.speaks


@contextmanager
def live(contender: Contender, folder: Path) -> Iterator[Live]:
    """Launch a contender once, as a trial would; after the stop nothing of it may be left."""
    if reason := contender.absent():
        pytest.skip(reason)
    model = str(contender.model(folder))
    speaks = contender.speaks
    spec = EngineSpec(
        kind=speaks.kind,
        command=contender.command,
        env=contender.env,
        startup_timeout_s=240,
        simulate=SimulateSpec(face="server") if speaks in (TENSORRT_LLM, TRITON) else None,
    )
    engine, phases = speaks.engine(study_spec(model=model, engine=spec)), list[str]()
    candidate = Candidate(params={}, args=speaks.args, role=Role.SEARCH, fingerprint="contract")
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    with engine.launch(candidate, trial_dir=folder, gpus=(), on_phase=phases.append) as server:
        family = {process.pid for process in psutil.Process().children(recursive=True)} - before
        client = Client(server.endpoint.port)
        yield Live(contender=contender, server=server, client=client, model=model, phases=phases)
    assert len(family) >= 2  # the keeper and the engine
    assert server.cleanup is not None
    assert (server.cleanup.left_processes, server.cleanup.port_free) == (0, True)
    assert [pid for pid in family if not gone(pid)] == []
    assert port_free(server.endpoint.port)
