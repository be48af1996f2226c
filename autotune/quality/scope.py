"""What of a study is checked: the parameters that may change what the model says, and what keeps them from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from autotune.errors import InputError, Problem
from autotune.quality.prompts import read_prompts
from autotune.records.spec import Args, EngineKind, SimulateSpec, StudySpec
from autotune.records.variants import CHECKPOINT


def guarded(spec: StudySpec) -> tuple[str, ...]:
    """Return the parameters that are searched and may change what the model says, where they are to be checked. Another
    checkpoint always may."""
    if spec.objective.quality is None or spec.quality == "unchecked":
        return ()
    return tuple(
        parameter.name
        for parameter in spec.search_space.parameters
        if (parameter.changes_output or parameter.name == CHECKPOINT) and not _given(spec.engine.args, parameter.name)
    )


def _given(args: Args, name: str) -> bool:
    """Whether a name, dotted for a nested one, has a value."""
    if name in args:
        return True
    head, dot, rest = name.partition(".")
    inner = args.get(head)
    return bool(dot) and isinstance(inner, Mapping) and _given(inner, rest)


def quality_problems(spec: StudySpec) -> Iterator[Problem]:
    """What keeps the answers of a study from being checked: prompts that can't be read, an engine that says nothing."""
    if not guarded(spec):
        return
    simulate = spec.engine.simulate or SimulateSpec()
    if spec.engine.kind is EngineKind.SIMULATED and simulate.face == "virtual":
        yield Problem(
            path=("objective", "quality"),
            message="a simulation in virtual time says nothing that could be checked",
            hint="set engine.simulate.face: server, or `quality: unchecked` in the study",
        )
    if spec.objective.quality is None or spec.objective.quality.prompts is None:
        return
    try:
        read_prompts(spec.objective.quality.prompts)
    except InputError as error:
        yield Problem(path=("objective", "quality", "prompts"), message=error.message, hint=error.hint)
