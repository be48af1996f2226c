"""The names that expressions know besides parameters: fixed arguments, GPUs, and what the workload asks for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from autotune.records.spec import Args, FixedLength, Length, ParamValue, StudySpec, UniformLength

WORKLOAD_NAMES = ("gpus", "longest_input_tokens", "longest_output_tokens", "longest_request_tokens")


def environment(spec: StudySpec, gpus: int | None) -> dict[str, ParamValue]:
    """Return every value known before the search; what is unknown (lengths of a dataset) is left out."""
    return {**_workload(spec), **({} if gpus is None else {"gpus": gpus}), **known_values(spec.engine.args)}


def _workload(spec: StudySpec) -> dict[str, ParamValue]:
    workload = spec.objective.workload
    if workload.dataset is not None or workload.input_tokens is None or workload.output_tokens is None:
        return {}
    longest_input, longest_output = _longest(workload.input_tokens), _longest(workload.output_tokens)
    return {
        "longest_input_tokens": longest_input,
        "longest_output_tokens": longest_output,
        "longest_request_tokens": longest_input + longest_output,
    }


def _longest(length: Length) -> int:
    if isinstance(length, FixedLength):
        return length.tokens
    if isinstance(length, UniformLength):
        return length.high
    return length.high


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
