"""What the options file of `trtllm-serve` may hold: names, types, choices and bounds, by fields.json.

fields.json says of which releases it tells and how it is refreshed. Names are dotted: `kv_cache_config.dtype`.
"""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.records.spec import Args

TUNER_OWNED = frozenset({"model", "host", "port", "config", "extra_llm_api_options"})
"""The tuner starts and reaches the server by these: a study can't set them."""

OFF = "None"
NONE_MEANS: Mapping[str, Any] = {"speculative_config.decoding_type": OFF}
"""Choices that stand for leaving a whole group out, as a search space writes them."""

OPEN = ("dict", "any")
"""Types whose content is the engine's own affair."""

ELSEWHERE: Mapping[str, str] = {
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "max_model_len": "max_seq_len",
    "gpu_memory_utilization": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_dtype": "kv_cache_config.dtype",
    "enable_prefix_caching": "kv_cache_config.enable_block_reuse",
    "block_size": "kv_cache_config.tokens_per_block",
    "enforce_eager": "cuda_graph_config",
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "ep_size": "moe_expert_parallel_size",
}
"""What vLLM, and the command line of `trtllm-serve`, call the same thing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One field of the options. `null`: the engine may choose; `since`: the first release that has it."""

    name: str
    type: str
    null: bool = False
    default: Any = None
    choices: tuple[Any, ...] = ()
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    status: str = "stable"
    since: str | None = None


@cache
def fields() -> Mapping[str, Field]:
    """Every field by its dotted name."""
    return {
        name: Field(name=name, **{**facts, "choices": tuple(facts.get("choices", ()))})
        for name, facts in _facts()["fields"].items()
    }


def fields_version() -> str:
    """The releases that `fields` describes."""
    return str(_facts()["about"]["tensorrt_llm"])


@cache
def _facts() -> Mapping[str, Any]:
    text = resources.files("autotune.engines.tensorrt_llm").joinpath("fields.json").read_text(encoding="utf-8")
    facts: Mapping[str, Any] = json.loads(text)
    return facts


def documented_defaults() -> Args:
    """Return the defaults by dotted name; those that the engine derives are absent."""
    return {**{field.name: field.default for field in fields().values() if field.default is not None}, **NONE_MEANS}


def leaves(args: Args, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield each argument by its dotted name; what an open field holds stays in one piece."""
    for key, value in args.items():
        name = f"{prefix}{key}"
        field = fields().get(name)
        if isinstance(value, Mapping) and value and (field is None or field.type not in OPEN):
            yield from leaves(value, f"{name}.")
        else:
            yield name, value


# --- checks -----------------------------------------------------------------------------------------------------------


def known(name: str) -> bool:
    """Whether there is a field of this name, or one that may hold anything above it."""
    if name in fields():
        return True
    parents = (name.rsplit(".", count)[0] for count in range(1, name.count(".") + 1))
    return any(parent in fields() and fields()[parent].type in OPEN for parent in parents)


def similar(name: str) -> str:
    """A "did you mean" for an unknown field, or what to look at when nothing is close."""
    leaf = name.rsplit(".", 1)[-1]
    inside = [known_name for known_name in fields() if known_name.rsplit(".", 1)[-1] == leaf]
    close = [ELSEWHERE[name]] if name in ELSEWHERE else inside or difflib.get_close_matches(name, fields(), n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"the fields are those of TorchLlmArgs of TensorRT-LLM {fields_version()}, nested ones dotted"


def complaint(name: str, value: Any) -> str | None:
    """Why TensorRT-LLM would refuse this value of a known field, or None."""
    field = fields().get(name)
    if field is None or value == NONE_MEANS.get(name):
        return None
    if not _fits(field.type, value):
        return f"{value!r} is not {_KINDS[field.type]}"
    if field.choices:
        values = value if isinstance(value, list | tuple) else (value,)
        wrong = next((item for item in values if item not in field.choices), None)
        if wrong is not None:
            return f"{wrong!r} is not one of {', '.join(map(str, field.choices))}"
    return _out_of_bounds(field, value)


def _out_of_bounds(field: Field, value: Any) -> str | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    if field.ge is not None and value < field.ge:
        return f"{value} is below {field.ge:g}"
    if field.gt is not None and value <= field.gt:
        return f"{value} is not above {field.gt:g}"
    if field.le is not None and value > field.le:
        return f"{value} is above {field.le:g}"
    return None


_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "object": "a mapping",
    "dict": "a mapping",
    "list[int]": "a list of whole numbers",
    "list[float]": "a list of numbers",
    "list[str]": "a list of texts",
}
_TYPES: Mapping[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "float": (int, float),
    "str": (str,),
    "object": (Mapping,),
    "dict": (Mapping,),
}


def _fits(kind: str, value: Any) -> bool:
    if kind == "any":
        return True
    if kind.startswith("list["):
        inner = kind.removeprefix("list[").removesuffix("]")
        return isinstance(value, list | tuple) and all(_fits(inner, item) for item in value)
    return isinstance(value, _TYPES[kind]) and (kind == "bool" or not isinstance(value, bool))
