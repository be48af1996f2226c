"""What is known of a model and a machine without an engine: the model's config.json, the GPU by the driver's name."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autotune.models.shapes import GpuSpec, gpu_names, gpu_of

PLAIN_DECODERS = frozenset({"LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM"})
"""Every layer attends to all tokens and keeps their keys and values: what the memory model and some rules describe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where the engine runs. `gpus`: how many it is given, 0 for a CPU. `gpu` None: the table doesn't know it."""

    gpus: int
    gpu: GpuSpec | None = None
    host_memory_bytes: int | None = None


def gpu_by_driver_name(name: str | None, memory_bytes: int | None) -> GpuSpec | None:
    """Return the GPU that the driver calls `name` (`NVIDIA H100 80GB HBM3`) with the memory it has; None if unknown."""
    words = set(re.split(r"[^a-z0-9]+", (name or "").lower()))
    known = next((gpu_of(key) for key in gpu_names() if key in words), None)
    return known if known is None or memory_bytes is None else replace(known, memory_bytes=memory_bytes)


def hub_cache(env: Mapping[str, str]) -> Path:
    """Return where Hugging Face's hub keeps models under the environment `env`."""
    home = Path(env.get("HF_HOME") or Path(env.get("XDG_CACHE_HOME") or "~/.cache") / "huggingface")
    return Path(env.get("HF_HUB_CACHE") or env.get("HUGGINGFACE_HUB_CACHE") or home / "hub").expanduser()


def model_folder(model: str, env: Mapping[str, str]) -> Path | None:
    """Return the folder of a local model, or of the newest copy in the hub's cache; None where there is neither."""
    local = Path(model).expanduser()
    if (local / "config.json").is_file():
        return local
    snapshots = hub_cache(env) / f"models--{model.replace('/', '--')}" / "snapshots"
    copies = [path.parent for path in snapshots.glob("*/config.json")] if snapshots.is_dir() else []
    return max(copies, key=lambda path: path.stat().st_mtime, default=None)


def model_config(folder: Path | None) -> Mapping[str, Any] | None:
    """Return a model's config.json, the language part of a multimodal one; None where it can't be read."""
    if folder is None:
        return None
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(config, dict):
        return None
    text = config.get("text_config")
    return {**config, **text} if isinstance(text, dict) else config


def plain_decoder(config: Mapping[str, Any] | None) -> bool:
    """Whether config.json describes a model that the memory model knows how to count."""
    if config is None:
        return False
    window = config.get("sliding_window") if config.get("use_sliding_window", True) else None
    return not window and set(config.get("architectures") or ()) <= PLAIN_DECODERS and bool(config.get("architectures"))


def weights_bytes(folder: Path | None) -> int:
    """Return the size of the weight files that are there."""
    if folder is None:
        return 0
    return sum(path.stat().st_size for suffix in ("safetensors", "bin") for path in folder.glob(f"*.{suffix}"))
