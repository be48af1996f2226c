"""What a step really takes on a landscape: the project's scheduler, with a step time that its simulator does not know.

`gpu_time` and `step_time` here stand in the place of those of `autotune.models.kernel`; every other decision is the
scheduler's own. Neutral extras give the simulator's own times again.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import sys
import types
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from autotune.models import kernel
from autotune.models.kernel import Costs, Limits, Work

GENERATED = Path(__file__).parents[2] / "runs" / "bench-search" / "kernel"


class Extras(NamedTuple):
    """What the simulator lacks. `tile_tok`: matrix products take whole tiles of so many tokens; `mixed_s`: added to a
    step of prompts and answers together; `mixed_ratio`: by so much longer their attention takes; `graph_pad`: decodes
    run in graphs of a multiple of so many sequences; `skew_per_seq`: attention is longer by this share a sequence, as
    the longest one ends last; `exposed_ratio`: of the host's work, what async scheduling doesn't hide."""

    tile_tok: int = 1
    mixed_s: float = 0.0
    mixed_ratio: float = 0.0
    graph_pad: int = 1
    skew_per_seq: float = 0.0
    exposed_ratio: float = 0.15


class TrueCosts(NamedTuple):
    """`Costs` and `Extras` in one tuple, which is what compiled code takes."""

    weights: float
    overlap: float
    gemm_per_token: float
    attn_per_pair: float
    attn_per_kv: float
    per_token: float
    floor: float
    head_weights: float
    head_per_seq: float
    host: float
    host_per_seq: float
    launch: float
    api_latency: float
    api_per_request: float
    api_per_prompt_token: float
    api_per_token: float
    tile_tok: int
    mixed_s: float
    mixed_ratio: float
    graph_pad: int
    skew_per_seq: float
    exposed_ratio: float


def true_costs(costs: Costs, extras: Extras) -> TrueCosts:
    """Join them."""
    return TrueCosts(**costs._asdict(), **extras._asdict())


def gpu_time(limits: Limits, costs: TrueCosts, w: Work) -> float:
    """Seconds a GPU takes for a step."""
    mixed = w.decode_only == 0 and w.kv > 0
    pad = costs.graph_pad if w.decode_only == 1 and w.seqs <= limits.max_graph else costs.tile_tok
    compute = -(-w.tokens // pad) * pad * costs.gemm_per_token
    gemm = max(costs.weights, compute) + costs.overlap * min(costs.weights, compute)
    attention = (w.pairs * costs.attn_per_pair + w.kv * costs.attn_per_kv) * (1.0 + costs.skew_per_seq * w.seqs)
    if mixed:
        attention *= 1.0 + costs.mixed_ratio
    head = max(costs.head_weights, w.seqs * costs.head_per_seq)
    gpu = gemm + attention + w.tokens * costs.per_token + costs.floor + head
    if mixed:
        gpu += costs.mixed_s
    if limits.eager == 1 or (w.decode_only == 1 and w.seqs > limits.max_graph):
        gpu += costs.launch
    return gpu


def step_time(limits: Limits, costs: TrueCosts, w: Work) -> float:
    """Seconds of a whole step: GPU and host."""
    gpu = gpu_time(limits, costs, w)
    host = costs.host + costs.host_per_seq * w.seqs
    if limits.asynchronous == 1:
        return max(gpu, host) + costs.exposed_ratio * host
    return gpu + host


REPLACED: tuple[Callable[..., float], ...] = (gpu_time, step_time)


@cache
def true_kernel() -> Callable[..., int]:
    """Return the compiled `simulate` of the kernel with this module's step time.

    The functions are written to a file of their own, named by its text: numba's cache goes by a file's age, so that
    functions of two files that call one another are not cached together.
    """
    import numba  # noqa: PLC0415 - half a second to import

    module = _generated(_source())
    names: dict[str, Any] = vars(module)
    for name, value in list(names.items()):
        if isinstance(value, types.FunctionType) and value.__module__ == module.__name__:
            names[name] = numba.njit(cache=True, error_model="numpy")(value)
    compiled: Callable[..., int] = names["simulate"]
    return compiled


def _source() -> str:
    """The kernel's text, the functions that are replaced taken from here."""
    text = inspect.getsource(kernel)
    ours = {function.__name__: inspect.getsource(function) for function in REPLACED}
    lines = text.splitlines(keepends=True)
    for node in reversed(ast.parse(text).body):
        if isinstance(node, ast.FunctionDef) and node.name in ours:
            lines[node.lineno - 1 : node.end_lineno] = ours[node.name]
    return "".join(lines).replace("costs: TrueCosts", "costs: Costs")


def _generated(source: str) -> types.ModuleType:
    name = f"kernel_{hashlib.sha256(source.encode()).hexdigest()[:12]}"
    path = GENERATED / f"{name}.py"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(source, encoding="utf-8")
        draft.replace(path)
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # numba pickles what it compiled by its module's name
    spec.loader.exec_module(module)
    return module
