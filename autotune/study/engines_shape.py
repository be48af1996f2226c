"""Several engines between file and record: the joined space to look at, and the file form of each entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.records.spec import ENGINE, Choice, EngineEntry, ParameterSpec, SpaceSpec, parameter_of


def joined_space(entries: Sequence[EngineEntry]) -> SpaceSpec:
    """Return the spaces of several engines as one to look at: the engine as a choice, each parameter under its
    engine's name. Conditions and rules stay with each engine's own space, which is what is searched."""
    names = tuple(str(entry.engine.name) for entry in entries)
    choice = ParameterSpec(name=ENGINE, domain=Choice(values=names), why="which is better is the question")
    return SpaceSpec(
        name=" + ".join(dict.fromkeys(entry.search_space.name for entry in entries)),
        engine=entries[0].search_space.engine,
        parameters=(choice, *(parameter for entry in entries for parameter in _named(entry))),
    )


def _named(entry: EngineEntry) -> Sequence[ParameterSpec]:
    return [
        replace(parameter, name=parameter_of(str(entry.engine.name), parameter.name), when=None)
        for parameter in entry.search_space.parameters
    ]
