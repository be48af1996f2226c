"""What a measurement was asked for, in words."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.records.spec import Length, LogNormalLength, ObjectiveSpec, UniformLength, WorkloadSpec
from autotune.report.loads import load_text, workload_text
from autotune.report.words import plain


def opening(url: str, model: str, version: str | None, objective: ObjectiveSpec, seed: int) -> str:
    """Return what is done: to which server, and with which requests."""
    which = f" ({plain(version)})" if version else ""
    workload = objective.workload
    asked = "; ".join([load_text(objective.load), workload_text(workload), *_lengths(workload), f"seed {seed}"])
    return f"{url}, {plain(model)}{which}\n{plain(objective.name)}: {asked}"


def _lengths(workload: WorkloadSpec) -> Iterator[str]:
    if workload.input_tokens is not None:
        yield f"prompts of {_length(workload.input_tokens)} tokens"
    if workload.output_tokens is not None:
        yield f"answers of {_length(workload.output_tokens)}"


def _length(length: Length) -> str:
    if isinstance(length, LogNormalLength):
        return f"{length.low}…{length.high} (median {length.median:g})"
    return f"{length.low}…{length.high}" if isinstance(length, UniformLength) else f"{length.tokens}"
