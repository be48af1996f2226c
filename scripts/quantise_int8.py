"""Quantise a checkpoint's linear layers to int8 (W8A8): `quantise_int8.py MODEL OUTPUT`.

Runs in vLLM's Python, which brings torch and safetensors; nothing is fetched, no GPU is needed. Weights are rounded to
the nearest of 255 levels a row (channel), activations are quantised by the engine at run time, a scale a token: the
`int-quantized` format of compressed-tensors, which vLLM reads on CPUs and GPUs. No calibration data is used, so larger
models lose more than what llm-compressor (SmoothQuant, GPTQ) leaves; this one is for seeing the whole chain.

A file that is there and whole is not made again, so a run that was stopped goes on.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import save_file

LEVELS = 127  # symmetric: -128 is left out, so that no value has a negative without a positive
INDEX = "model.safetensors.index.json"
KEPT = ("lm_head", "embed_tokens")
SCHEME = {
    "quant_method": "compressed-tensors",
    "format": "int-quantized",
    "quantization_status": "compressed",
    "ignore": ["lm_head"],
    "config_groups": {
        "group_0": {
            "targets": ["Linear"],
            "weights": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "channel",
                "dynamic": False,
            },
            "input_activations": {
                "num_bits": 8,
                "type": "int",
                "symmetric": True,
                "strategy": "token",
                "dynamic": True,
            },
        }
    },
}


def is_linear(name: str, tensor: torch.Tensor) -> bool:
    """Whether a weight is that of a linear layer other than the head."""
    parts = name.split(".")
    return parts[-1] == "weight" and tensor.ndim == 2 and not set(KEPT) & set(parts)


def quantised(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return int8 values and the float32 scale of each row; values * scale is the weight to within half a scale."""
    exact = weight.float()
    scale = exact.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(torch.float32).tiny) / LEVELS
    return (exact / scale).round().clamp(-LEVELS, LEVELS).to(torch.int8), scale


def tensors_of(file: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the quantised file holds in the place of `file`."""
    with safe_open(file, framework="pt") as opened:
        for name in opened.keys():  # noqa: SIM118  no mapping: it has no iterator
            tensor = opened.get_tensor(name)
            if is_linear(name, tensor):
                values, scale = quantised(tensor)
                yield name, values
                yield f"{name}_scale", scale
            else:
                yield name, tensor


def write_weights(source: Path, target: Path) -> dict[str, list[str]]:
    """Write every file of weights, and return the names of tensors that each holds."""
    held: dict[str, list[str]] = {}
    for file in sorted(source.glob("*.safetensors")):
        made = target / file.name
        if not made.exists():
            save_file(dict(tensors_of(file)), made.with_suffix(".new"), metadata={"format": "pt"})
            made.with_suffix(".new").rename(made)
        with safe_open(made, framework="pt") as opened:
            held[file.name] = list(opened.keys())
        print(f"{file.name}: {made.stat().st_size / 2**20:.1f} MiB", flush=True)
    return held


def main() -> None:
    """Weights first, config.json last: without it, nothing takes the folder for a model."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    if "quantization_config" in config:
        sys.exit(f"ValueError: {source} is quantised already")
    target.mkdir(parents=True, exist_ok=True)
    held = write_weights(source, target)
    if not held:
        sys.exit(f"FileNotFoundError: there are no *.safetensors in {source}")
    if len(held) > 1:
        where = {name: file for file, names in held.items() for name in names}
        (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}, indent=1))
    for file in source.glob("*"):
        if file.suffix in {".json", ".jinja", ".model", ".txt"} and file.name not in {"config.json", INDEX}:
            shutil.copyfile(file, target / file.name)
    (target / "config.json").write_text(json.dumps(config | {"quantization_config": SCHEME}, indent=1) + "\n")


if __name__ == "__main__":
    main()
