"""Write what TensorRT-LLM's options file accepts as JSON: `trtllm_fields.py OUT.json`, run by its own Python.

Asks `TorchLlmArgs`, a pydantic model, for its fields and those of the models nested in it. Checked against a small
package in TensorRT-LLM's place only: compare its output with fields.json before it takes that file's place.
"""

from __future__ import annotations

import json
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import tensorrt_llm
from pydantic import BaseModel
from tensorrt_llm.llmapi.llm_args import TorchLlmArgs

PLAIN = {bool: "bool", int: "int", float: "float", str: "str", dict: "dict"}
BOUNDS = ("ge", "gt", "le")


def fields(model: type[BaseModel], prefix: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (dotted name, facts) of a model's fields, nested models' after their own."""
    for name, field in model.model_fields.items():
        kinds = [kind for kind in alternatives(field.annotation) if kind is not type(None)]
        nested = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, BaseModel)]
        facts: dict[str, Any] = {"type": "object" if nested else kind_of(kinds)}
        if type(None) in alternatives(field.annotation):
            facts["null"] = True
        if isinstance(field.default, bool | int | float | str):
            facts["default"] = field.default
        if choices := [value for kind in kinds for value in literals(kind)]:
            facts["choices"] = choices
        facts |= {bound: getattr(rule, bound) for rule in field.metadata for bound in BOUNDS if hasattr(rule, bound)}
        yield prefix + name, facts
        for each in nested:
            yield from fields(each, f"{prefix}{name}.")


def alternatives(annotation: Any) -> list[Any]:  # noqa: ANN401 - a type
    """The members of a union, or the type alone; annotations are taken off."""
    if typing.get_origin(annotation) is typing.Annotated:
        return alternatives(typing.get_args(annotation)[0])
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return [kind for member in typing.get_args(annotation) for kind in alternatives(member)]
    return [annotation]


def literals(kind: Any) -> list[Any]:  # noqa: ANN401
    """The values of a Literal or an enumeration of texts."""
    if typing.get_origin(kind) is typing.Literal:
        return list(typing.get_args(kind))
    members = getattr(kind, "__members__", {})
    return [member.value for member in members.values() if isinstance(member.value, str)]


def kind_of(kinds: list[Any]) -> str:
    """The type's name as fields.json has it."""
    if any(literals(kind) for kind in kinds):
        return "str"
    first = kinds[0] if kinds else None
    if typing.get_origin(first) is list:
        inner = PLAIN.get(typing.get_args(first)[0], "any")
        return f"list[{inner}]" if inner in ("int", "float", "str") else "any"
    return PLAIN.get(typing.get_origin(first) or first, "any")


def main() -> None:
    """Write the file."""
    found = {name: facts for name, facts in fields(TorchLlmArgs) if name != "model"}
    about = {"tensorrt_llm": tensorrt_llm.__version__, "refresh": "scripts/trtllm_fields.py"}
    Path(sys.argv[1]).write_text(json.dumps({"about": about, "fields": found}, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main()
