"""Shapes of models and GPUs: the numbers from which memory and step times follow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

FULL_PRECISION = {"float32": 4.0, "float": 4.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """A dense decoder. `weight_format`: "bf16", or what the checkpoint is quantised to ("fp8", "int4")."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    max_position: int
    tied: bool = False
    dtype_bytes: float = 2.0
    weight_format: str = "bf16"

    @property
    def layer_parameters(self) -> int:
        """Weights of one layer: d(2h·hd + 2kv·hd) + 3d·ff."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        return attention + 3 * self.hidden * self.ffn

    @property
    def parameters(self) -> int:
        """Weights of all layers and the embeddings, norms left out."""
        return self.layers * self.layer_parameters + self.vocab * self.hidden * (1 if self.tied else 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU: peak rates (FLOP/s, bytes/s), memory, and how much of each peak real kernels reach."""

    name: str
    bf16_flops: float
    fp8_flops: float
    bandwidth: float
    memory_bytes: int
    link: float
    capability: int
    eff_flops_bf16: float
    eff_flops_fp8: float
    eff_bandwidth: float
    eff_bandwidth_fp8: float
    eff_attn_prefill: float
    eff_attn_decode: float
    eff_attn_decode_fp8: float
    layer_floor_us: float
    layer_floor_fp8_us: float
    allreduce_latency_us: float
    eff_allreduce: Mapping[str, float]  # by tensor-parallel size
    elementwise_bytes: float
    overlap_ratio: float


@cache
def _table(name: str) -> Mapping[str, Any]:
    table: Mapping[str, Any] = json.loads((files("autotune.models") / "data" / name).read_text(encoding="utf-8"))
    return table


def gpu_names() -> list[str]:
    """Names of the GPUs that can be simulated, aliases left out."""
    return sorted(_table("gpus.json")["gpus"])


def gpu_of(name: str, engine: str = "vllm") -> GpuSpec | None:
    """Return the GPU called `name` (any case, `-` or `_`; `h100_sxm` is `h100`) as `engine`'s kernels use it, or None.

    `engine` is "vllm" or "tensorrt_llm".
    """
    table = _table("gpus.json")
    key = name.lower().replace("-", "_")
    key = table["aliases"].get(key, key)
    if key not in table["gpus"]:
        return None
    facts = dict(table["gpus"][key])
    kernels = {k: v for k, v in facts.pop("kernels")[engine].items() if k != "fit"}
    return GpuSpec(name=key, **facts, **kernels)


def model_names() -> list[str]:
    """Hub names of the shipped shapes, aliases included."""
    table = _table("models.json")
    return sorted([*table["models"], *table["aliases"]])


def shape_of(model: str) -> ModelShape | None:
    """Return the shape of `model`: a shipped hub name, or a folder with a config.json; None when neither is there."""
    table = _table("models.json")
    name = table["aliases"].get(model, model)
    if name in table["models"]:
        return ModelShape(name=model, **table["models"][name])
    path = Path(model) / "config.json"
    return _from_config(model, json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else None


def _from_config(name: str, config: Mapping[str, Any]) -> ModelShape | None:
    """Read a Hugging Face config.json; None when it lacks a decoder's shape (then nothing can be simulated)."""
    needed = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "vocab_size")
    if any(key not in config for key in needed):
        return None
    heads = config["num_attention_heads"]
    dtype = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return ModelShape(
        name=name,
        layers=config["num_hidden_layers"],
        hidden=config["hidden_size"],
        heads=heads,
        kv_heads=config.get("num_key_value_heads") or heads,
        head_dim=config.get("head_dim") or config["hidden_size"] // heads,
        ffn=config["intermediate_size"],
        vocab=config["vocab_size"],
        max_position=config.get("max_position_embeddings", 2048),
        tied=bool(config.get("tie_word_embeddings", False)),
        dtype_bytes=FULL_PRECISION.get(dtype, 2.0),
        weight_format=_weight_format(config.get("quantization_config") or {}),
    )


def _weight_format(quantization: Mapping[str, Any]) -> str:
    method = str(quantization.get("quant_method", ""))
    if not method:
        return "bf16"
    return "fp8" if "fp8" in json.dumps(quantization).lower() else "int4"
