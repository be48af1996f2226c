"""What a study gives an engine, looked at argument by argument: those it fixes, derives, searches, and runs today."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from autotune.errors import Problem
from autotune.records.spec import Choice, Domain, FloatRange, IntRange, StudySpec
from autotune.records.variants import CHECKPOINT

Look = Callable[[tuple[str, ...], str, Sequence[Any]], Iterator[Problem]]
"""Where an argument stands in the study, its name, and values that it may have: what is wrong with it."""


def argument_problems(spec: StudySpec, look: Look) -> Iterator[Problem]:
    """Yield what `look` says to every argument in a study."""
    for name, value in spec.engine.args.items():
        yield from look(("engine", "args", name), name, (value,))
    for name in spec.search_space.derived:
        yield from look(("search_space", "derived", name), name, ())
    for parameter in spec.search_space.parameters:
        if parameter.name != CHECKPOINT:  # chooses what the engine loads; none has such an argument
            yield from look(("search_space", "parameters", parameter.name), parameter.name, samples(parameter.domain))
    for name, value in (spec.incumbent or {}).items():
        yield from look(("incumbent", name), name, (value,))


def samples(domain: Domain) -> tuple[Any, ...]:
    """Values that stand for a domain: its ends, or all of its choices."""
    match domain:
        case Choice(values=values):
            return values
        case IntRange(low=low, high=high) | FloatRange(low=low, high=high):
            return (low, high)
