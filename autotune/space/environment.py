"""The names that expressions know besides parameters: fixed arguments, GPUs, and what the workload asks for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any

from autotune.models.facts import model_config, model_folder
from autotune.models.feasibility import EXPERT_KEYS
from autotune.records.spec import Args, ParamValue, StudySpec

WORKLOAD_NAMES = ("gpus", "experts", "longest_input_tokens", "longest_output_tokens", "longest_request_tokens")


def environment(spec: StudySpec, gpus: int | None) -> dict[str, ParamValue]:
    """Return every value known before the search; what is unknown (lengths of a dataset) is left out."""
    counted = {"experts": _experts(spec), **({} if gpus is None else {"gpus": gpus})}
    return {**_workload(spec), **counted, **known_values(spec.engine.args)}


def _experts(spec: StudySpec) -> int:
    """Experts of the model by its config.json, where that is on this machine; 0 for a dense or an unknown one."""
    config = model_config(model_folder(spec.model, {**os.environ, **spec.engine.env})) or {}
    return next((count for key in EXPERT_KEYS if isinstance(count := config.get(key), int)), 0)


def _workload(spec: StudySpec) -> dict[str, ParamValue]:
    longest = spec.objective.workload.longest_tokens
    if longest is None:
        return {}
    longest_input, longest_output = longest
    return {
        "longest_input_tokens": longest_input,
        "longest_output_tokens": longest_output,
        "longest_request_tokens": longest_input + longest_output,
    }


def flat(args: Args, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield every argument by its dotted name, those inside nested mappings too."""
    for name, value in args.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def known_values(args: Args) -> dict[str, ParamValue]:
    """Return the arguments that an expression can compute with; `auto` leaves the value to the engine: unknown."""
    return {
        name: value for name, value in flat(args) if isinstance(value, bool | int | float | str) and value != "auto"
    }


def merged(*layers: Args) -> dict[str, Any]:
    """Return the layers as one set of arguments, later ones winning; dotted names become nested mappings."""
    result: dict[str, Any] = {}
    for layer in layers:
        for name, value in layer.items():
            *parents, last = name.split(".")
            target = result
            for parent in parents:
                inner = target.get(parent)
                target[parent] = dict(inner) if isinstance(inner, Mapping) else {}
                target = target[parent]
            target[last] = value
    return result
