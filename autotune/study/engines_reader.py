"""A study of several engines, read as one study for each of them: every check then says where it stands in the file.

In the file: `engines: {name: {kind: …, space: …, incumbent: …}}`. For each name the file is read as if `engine`,
`search_space` and `incumbent` were given by that entry; problems are placed back where they came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from autotune.errors import Problem
from autotune.records.spec import EngineEntry, EngineKind, StudySpec
from autotune.study.engines_checks import LEAST, name_fault, unequal
from autotune.study.engines_shape import joined_space
from autotune.study.tree import KeyPath, Source

ENGINES: Final = "engines"
_OWN: Final = {"space": "search_space", "incumbent": "incumbent"}
_SHARED_BY_NONE: Final = ("engine", "search_space", "incumbent")


def has_engines(source: Source) -> bool:
    """Whether a study file asks for several engines."""
    return ENGINES in (source.data or {})


def shape_problems(source: Source) -> list[Problem]:
    """Return what keeps the file from being read engine by engine, or is said of none of them."""
    data = source.data or {}
    problems = [
        Problem(path=(key,), message="belongs to each engine where there are several", hint=f"move it into {ENGINES}")
        for key in _SHARED_BY_NONE
        if key in data
    ]
    entries = data[ENGINES]
    if not isinstance(entries, dict) or len(entries) < LEAST:
        hint = "as {vllm: {kind: vllm, space: …}, trtllm: {…}}; a single one is `engine`"
        return [*problems, Problem(path=(ENGINES,), message="expected two or more engines by name", hint=hint)]
    return [*problems, *(problem for name, entry in entries.items() for problem in _entry_problems(name, entry))]


def _entry_problems(name: str, entry: object) -> Iterator[Problem]:
    path = (ENGINES, name)
    if fault := name_fault(name):
        yield Problem(path=path, message=f"{name!r} can't be used as a name", hint=fault)
    if not isinstance(entry, dict):
        yield Problem(path=path, message="expected a mapping", hint="as {kind: vllm, space: vllm/default}")
        return
    if "search_space" in entry:
        yield Problem(
            path=(*path, "search_space"), message="unknown key", hint="of one of several engines it is `space`"
        )
    if entry.get("kind") == EngineKind.ENDPOINT:
        hint = "give it a study of its own, then: autotune compare RUN RUN"
        yield Problem(path=(*path, "kind"), message="nothing is tuned of an endpoint", hint=hint)
    elif "space" not in entry:
        yield Problem(path=(*path, "space"), message="is missing", hint="add it")


def of_each(source: Source) -> Iterator[tuple[str, Source, Callable[[KeyPath], KeyPath]]]:
    """Yield, for each engine, its name, the file as if it were of that engine alone, and what tells where a key of
    that really stands."""
    for name in (source.data or {})[ENGINES]:
        yield name, _alone(source, name), lambda path, name=name: _in_file(name, path)  # type: ignore[misc]


def _alone(source: Source, name: str) -> Source:
    data = dict(source.data or {})
    entry: Mapping[str, Any] = data.pop(ENGINES)[name]
    data["engine"] = {key: value for key, value in entry.items() if key not in _OWN}
    data |= {ours: entry[key] for key, ours in _OWN.items() if key in entry}
    return replace(
        source,
        data=data,
        lines={_moved(name, path): line for path, line in source.lines.items()},
        unusable=frozenset(_moved(name, path) for path in source.unusable),
    )


def _moved(name: str, path: KeyPath) -> KeyPath:
    """Where a key of the file stands in the study of one engine; the same for what all share."""
    if path[:2] != (ENGINES, name):
        return path
    inside = path[2:]
    if inside and inside[0] in _OWN:
        return (_OWN[str(inside[0])], *inside[1:])
    return ("engine", *inside)


def _in_file(name: str, path: KeyPath) -> KeyPath:
    """The way back from `_moved`."""
    back = {ours: (ENGINES, name, key) for key, ours in _OWN.items()} | {"engine": (ENGINES, name)}
    return (*back[str(path[0])], *path[1:]) if path and path[0] in back else path


def joined(studies: Mapping[str, StudySpec]) -> StudySpec:
    """Return the study of several engines from those of each, by name."""
    entries = tuple(
        EngineEntry(engine=replace(one.engine, name=name), search_space=one.search_space, incumbent=one.incumbent)
        for name, one in studies.items()
    )
    first = next(iter(studies.values()))
    return replace(first, engine=entries[0].engine, search_space=joined_space(entries), engines=entries)


def joined_problems(spec: StudySpec) -> Sequence[Problem]:
    """Return why the engines of a study would not be treated alike."""
    return [Problem(path=fault.at, message=fault.message, hint=fault.hint) for fault in unequal(spec)]
