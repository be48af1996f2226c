"""Fit the constants of `autotune/models/data/gpus.json` to measured kernel tables, never to end-to-end figures.

    python fit_constants.py tables TABLES.json     # in an environment of its own with aiconfigurator-core==0.12.0
    python -m benchmarks.simulator.fit_constants fit TABLES.json

The tables are step times of three models (decode: 1-512 sequences of 128-8192 tokens; prefill: 64-8192 tokens) on every
GPU, tensor parallel 1-8, weights and KV in 16 or 8 bits, as put together by aiconfigurator-core (NVIDIA, Apache-2.0)
from kernels measured under vLLM and TensorRT-LLM. H100 and H200 have the same compute die: what does not depend on
memory is fitted to both at once.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

Floats = NDArray[np.float64]
Point = dict[str, Any]

MODELS = ("meta-llama/Meta-Llama-3.1-8B", "meta-llama/Meta-Llama-3.1-70B", "Qwen/Qwen3-32B")
SYSTEMS = {"h100": "h100_sxm", "h200": "h200_sxm", "a100": "a100_sxm", "l40s": "l40s", "b200": "b200_sxm"}
BACKENDS = {"vllm": "vllm", "tensorrt_llm": "trtllm"}
POOLED = (("h100", "h200"), ("a100",), ("l40s",), ("b200",))
MOST_KV_TOKENS = 1_100_000
PREFILLS = ((1, 64, 0), (1, 256, 0), (1, 1024, 0), (1, 4096, 0), (1, 8192, 0), (4, 256, 0), (4, 1024, 0), (8, 1024, 0),
            (2, 4096, 0), (1, 1024, 7168), (1, 256, 4096))  # fmt: skip
DECODES = [(n, c) for n in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512) for c in (128, 512, 2048, 8192)]

# name: (start, low, high); the first four depend on the memory, the rest on the die
PARAMETERS = {
    "eff_bandwidth": (0.9, 0.4, 1.0),
    "eff_bandwidth_fp8": (0.9, 0.4, 1.0),
    "eff_attn_decode": (0.85, 0.2, 1.0),
    "eff_attn_decode_fp8": (0.7, 0.2, 1.0),
    "eff_flops_bf16": (0.75, 0.3, 1.0),
    "eff_flops_fp8": (0.6, 0.2, 1.0),
    "eff_attn_prefill": (1.0, 0.2, 1.5),
    "layer_floor_us": (55.0, 1.0, 150.0),
    "layer_floor_fp8_us": (55.0, 1.0, 150.0),
    "allreduce_latency_us": (3.0, 0.0, 40.0),
    "allreduce_2": (0.5, 0.01, 1.0),
    "allreduce_4": (0.5, 0.01, 1.0),
    "allreduce_8": (0.5, 0.01, 1.0),
    "elementwise_bytes": (24.0, 4.0, 250.0),
    "overlap_ratio": (0.15, 0.0, 0.8),
}
OF_MEMORY = 4


def tables() -> list[Point]:
    """Ask aiconfigurator-core for every point; combinations that its tables lack are left out."""
    from aiconfigurator_core.sdk import EngineHandle  # type: ignore[import-not-found]  # noqa: PLC0415 - other venv

    points = []
    for key in [(b, g, m, tp, w, kv) for b in BACKENDS for g in SYSTEMS for m in MODELS for tp in (1, 2, 4, 8)
                for w in ("bfloat16", "fp8") for kv in ("bfloat16", "fp8")]:  # fmt: skip
        backend, gpu, model, tp, weights, kv = key
        names = dict(zip(("backend", "gpu", "model", "tp", "weights", "kv"), key, strict=True))
        try:
            handle = EngineHandle.compile(
                model, SYSTEMS[gpu], BACKENDS[backend], tp_size=tp, gemm_quant_mode=weights, kvcache_quant_mode=kv
            )
            for n, c in DECODES:
                if n * c <= MOST_KV_TOKENS:
                    points.append(names | {"n": n, "c": c, "p": -1, "ms": handle.decode_step_latency(n, c, 2)})
            for n, c, p in PREFILLS:
                points.append(names | {"n": n, "c": c, "p": p, "ms": handle.predict_prefill_latency(n, c + p, p)})
        except (ValueError, RuntimeError, KeyError) as error:
            print(f"{key}: {error}"[:120], file=sys.stderr)
    return points


def fit(points: list[Point]) -> None:
    """Fit every GPU under every backend and rewrite gpus.json."""
    path = Path(__file__).parents[2] / "autotune" / "models" / "data" / "gpus.json"
    content = json.loads(path.read_text(encoding="utf-8"))
    for backend in BACKENDS:
        for group in POOLED:
            for gpu, constants in fit_group(points, backend, group, content["gpus"]).items():
                content["gpus"][gpu]["kernels"][backend] = constants
                print(backend, gpu, constants["fit"])
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


def fit_group(points: list[Point], backend: str, group: tuple[str, ...], gpus: dict[str, Any]) -> dict[str, Any]:
    start, low, high = np.array(list(PARAMETERS.values())).T
    columns = {gpu: Columns([p for p in points if p["gpu"] == gpu and p["backend"] == backend]) for gpu in group}

    def stacked(values: Floats) -> Floats:
        return np.concatenate([values[OF_MEMORY:], *[values[:OF_MEMORY]] * len(group)])

    def of(gpu: str, z: Floats) -> Floats:
        shared = len(PARAMETERS) - OF_MEMORY
        at = shared + group.index(gpu) * OF_MEMORY
        return np.concatenate([z[at : at + OF_MEMORY], z[:shared]])

    def residuals(z: Floats) -> Floats:
        return np.concatenate(
            [c.weight * np.log(c.seconds(of(g, z), gpus[g]) / c.measured) for g, c in columns.items()]
        )

    bounds = stacked(low), stacked(high)
    z = least_squares(residuals, stacked(start), bounds=bounds, loss="soft_l1", f_scale=0.1).x
    return {gpu: constants(of(gpu, z), columns[gpu], gpus[gpu]) for gpu in group}


def constants(x: Floats, columns: Columns, gpu: dict[str, Any]) -> dict[str, Any]:
    """As gpus.json holds them; a GPU without fp8 units gets its bf16 constants twice."""
    error = np.abs(columns.seconds(x, gpu) / columns.measured - 1)
    named: dict[str, Any] = {name: round(float(value), 3) for name, value in zip(PARAMETERS, x, strict=True)}
    named["eff_allreduce"] = {tp: named.pop(f"allreduce_{tp}") for tp in ("2", "4", "8")}
    if gpu["capability"] < 89:
        for name in ("eff_bandwidth", "eff_attn_decode"):
            named[f"{name}_fp8"] = named[name]
        named |= {"eff_flops_fp8": named["eff_flops_bf16"], "layer_floor_fp8_us": named["layer_floor_us"]}
    quality = {"points": len(error), "mape_pct": round(100 * float(error.mean()), 1)}
    return named | {"fit": quality | {"p90_pct": round(100 * float(np.quantile(error, 0.9)), 1)}}


def _shape_field(shapes: dict[str, Any], name: str) -> Callable[[Point], Any]:
    return lambda point: getattr(shapes[point["model"]], name)


class Columns:
    """The points of one GPU as arrays; `seconds` is `steptime`'s formula on all of them."""

    def __init__(self, points: list[Point]) -> None:

        from autotune.models.shapes import shape_of  # noqa: PLC0415 - `tables` runs where autotune is not installed

        def column(get: Callable[[Point], Any]) -> Floats:
            return np.array([get(p) for p in points], dtype=float)

        shapes = {model: shape for model in MODELS if (shape := shape_of(model)) is not None}
        self.layers, self.parameters, self.hidden, self.vocab, self.kv_heads = (
            column(_shape_field(shapes, name)) for name in ("layers", "layer_parameters", "hidden", "vocab", "kv_heads")
        )
        self.q_width = column(lambda p: shapes[p["model"]].heads * shapes[p["model"]].head_dim)
        self.kv_width = column(lambda p: shapes[p["model"]].kv_heads * shapes[p["model"]].head_dim)
        self.tp, self.n, self.measured = (column(itemgetter(key)) for key in ("tp", "n", "ms"))
        self.measured = self.measured / 1e3
        self.fp8 = column(lambda p: p["weights"] == "fp8") > 0
        self.kv8 = column(lambda p: p["kv"] == "fp8") > 0
        decode = column(lambda p: p["p"] < 0) > 0
        new, past = column(lambda p: p["c"]), column(lambda p: p["p"])
        self.tokens = np.where(decode, self.n, self.n * new)
        self.pairs = np.where(decode, 0.0, self.n * new * (past + new / 2))
        self.context = np.where(decode, self.n * (new + 1), 0.0)
        self.weight = np.where(decode, 1.0, np.sqrt(decode.sum() / (~decode).sum()))

    def seconds(self, x: Floats, gpu: dict[str, Any]) -> Floats:

        v, tp = dict(zip(PARAMETERS, x, strict=True)), self.tp
        read = gpu["bandwidth"] * np.where(self.fp8, v["eff_bandwidth_fp8"], v["eff_bandwidth"])
        bf16 = gpu["bf16_flops"] * v["eff_flops_bf16"]
        a = self.parameters * np.where(self.fp8, 1, 2) / tp / read
        b = 2 * self.parameters * self.tokens / tp / np.where(self.fp8, gpu["fp8_flops"] * v["eff_flops_fp8"], bf16)
        gemm = np.maximum(a, b) + v["overlap_ratio"] * np.minimum(a, b)
        prefill = 4 * self.q_width / tp * self.pairs / (gpu["bf16_flops"] * v["eff_attn_prefill"])
        kv_bytes = 2 * self.kv_width * np.where(self.kv8, 1, 2) / np.minimum(tp, self.kv_heads)
        kv_rate = gpu["bandwidth"] * np.where(self.kv8, v["eff_attn_decode_fp8"], v["eff_attn_decode"])
        traffic = v["elementwise_bytes"] * self.tokens * self.hidden / (gpu["bandwidth"] * v["eff_bandwidth"])
        floor = 1e-6 * np.where(self.fp8, v["layer_floor_fp8_us"], v["layer_floor_us"])
        link = gpu["link"] * np.select([tp == 2, tp == 4], [v["allreduce_2"], v["allreduce_4"]], v["allreduce_8"])
        reduce = 2 * (1e-6 * v["allreduce_latency_us"] + 4 * (tp - 1) / tp * self.tokens * self.hidden / link)
        layer = gemm + prefill + self.context * kv_bytes / kv_rate + traffic / np.sqrt(tp) + floor
        head = self.vocab * self.hidden / tp
        logits = np.maximum(
            2 * head / (gpu["bandwidth"] * v["eff_bandwidth"]), 2 * head * self.n / (gpu["bf16_flops"] * 0.6)
        )
        total: Floats = self.layers * (layer + np.where(tp > 1, reduce, 0.0)) + logits
        return total


if __name__ == "__main__":
    command, file = sys.argv[1], Path(sys.argv[2])
    if command == "tables":
        file.write_text(json.dumps(tables()), encoding="utf-8")
    else:
        fit(json.loads(file.read_text(encoding="utf-8")))
