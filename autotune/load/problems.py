"""What is wrong with the requests of a study, for the study's reader: files are read before anything is launched."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.errors import InputError, Problem
from autotune.load.workload import build_level
from autotune.records.spec import LoadSpec, StudySpec
from autotune.records.trial import LevelPlan


def workload_problems(spec: StudySpec) -> Iterable[Problem]:
    """Return why no level of the study can be planned: bad lines of its files, no tokenizer for its text."""
    try:
        first_plan(spec)
    except InputError as error:
        path = _key(spec)
        return [Problem(path=path, message=line, hint=error.hint or "") for line in error.message.splitlines()]
    return []


def first_plan(spec: StudySpec) -> LevelPlan:
    """Plan a level as the study's first would be, as far as that is known without an engine. Raises InputError."""
    plan = build_level(spec.objective.workload, one_level(spec.objective.load), seed=spec.seed, model=spec.model)
    plan.requests[0]  # text is made when it is asked for
    return plan


def one_level(load: LoadSpec) -> LoadSpec:
    """Return the load of one level; that of a search for capacity with any concurrency."""
    return load if load.capacity is None else replace(load, capacity=None, concurrency=1)


def _key(spec: StudySpec) -> tuple[str, ...]:
    workload = spec.objective.workload
    if spec.objective.load.trace is not None:
        return ("objective", "load", "trace", "file")
    for key in ("dataset", "lengths"):
        if getattr(workload, key) is not None:
            return ("objective", "workload", key)
    return ("objective", "workload", "text") if workload.text == "natural" else ("objective", "load")
