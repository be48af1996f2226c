"""The engines that must pass the one contract, and the only places where they may differ."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from autotune.engines.base import Server
from autotune.engines.net import port_free
from autotune.engines.vllm.engine import VllmEngine
from autotune.records.spec import EngineKind, EngineSpec
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Live:
    """A contender that is up, as the product sees it (`server`) and as any client does (`client`)."""

    contender: Contender
    server: Server
    client: Client
    model: str
    phases: list[str]


@contextmanager
def live(contender: Contender, folder: Path) -> Iterator[Live]:
    """Launch a contender once, as a trial would; after the stop nothing of it may be left."""
    if reason := contender.absent():
        pytest.skip(reason)
    model = str(contender.model(folder))
    spec = EngineSpec(kind=EngineKind.VLLM, command=contender.command, env=contender.env, startup_timeout_s=240)
    engine, phases = VllmEngine(study_spec(model=model, engine=spec)), list[str]()
    candidate = Candidate(params={}, args=ARGS, role=Role.SEARCH, fingerprint="contract")
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
