"""Reads a study file with all that it refers to, and reports every problem at the line where it stands."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from autotune.errors import InputError, Problem, StudyFileError
from autotune.records.spec import Args, EngineKind, ObjectiveSpec, StudySpec
from autotune.study.checks import did_you_mean
from autotune.study.engines_reader import has_engines, joined, joined_problems, of_each, shape_problems
from autotune.study.objective_forms import ObjectiveForm
from autotune.study.objective_shape import objective_of
from autotune.study.problems import validate
from autotune.study.shape import space_of, study_of
from autotune.study.shipped import shipped_objectives, shipped_spaces
from autotune.study.tree import MAX_BYTES, Finding, KeyPath, Source, read_source

Check = Callable[[StudySpec], Iterable[Problem]]
IncumbentReader = Callable[[EngineKind, str], Args]

SPACE: Final = "search_space"
OBJECTIVE: Final = "objective"
_ANY_STUDY: Final = {  # what an objective needs around it to be read like any other
    "name": "any",
    "model": "any",
    "engine": {"kind": "endpoint", "url": "http://any"},
}
_SHIPPED: Final = {SPACE: shipped_spaces, OBJECTIVE: shipped_objectives}


def load_study(path: Path, *, checks: Sequence[Check] = (), read_incumbent: IncumbentReader | None = None) -> StudySpec:
    """Return the study in `path`, its search space, objective, dataset and incumbent resolved.

    `checks` come from other stages: each returns problems by key path from the study's root, and runs only when the
    files themselves are sound. `read_incumbent` turns the text of an incumbent into engine arguments.
    Raises StudyFileError with every problem at once, each as `file:line: key: problem; hint`.
    """
    source = read_source(path)
    if has_engines(source):
        return _load_several(source, checks, read_incumbent)
    files = _Files(study=source)
    spec = _checked(files, checks, read_incumbent)
    if spec is None or files.broken:
        raise StudyFileError(files.report())
    return spec


def _checked(
    files: _Files, checks: Sequence[Check], read_incumbent: IncumbentReader | None, name: str | None = None
) -> StudySpec | None:
    """Return a study whose engine is called `name`, None when its files alone show that there is none; problems go to
    `files`."""
    spec = _spec(files, read_incumbent)
    if spec is None or files.broken:
        return None
    spec = replace(spec, engine=replace(spec.engine, name=name))
    for check in checks:
        files.problems.extend(check(spec))
    return spec


def _load_several(source: Source, checks: Sequence[Check], read_incumbent: IncumbentReader | None) -> StudySpec:
    whole = _Files(study=source, problems=shape_problems(source))
    if whole.problems:
        raise StudyFileError(whole.report())
    found: dict[str, StudySpec] = {}
    lines: list[str] = []
    for name, alone, in_file in of_each(source):
        files = _Files(study=alone, in_file=in_file)
        if (one := _checked(files, checks, read_incumbent, name)) is not None:
            found[name] = one
        lines += files.report()
    if lines:  # what all engines share is wrong for each of them, and said once
        raise StudyFileError(list(dict.fromkeys(lines)))
    spec = joined(found)
    whole.problems += joined_problems(spec)
    if whole.problems:
        raise StudyFileError(whole.report())
    return spec


def load_objective(reference: str) -> ObjectiveSpec:
    """Return the objective that is shipped as `reference` or, by a path from the working directory, lies in a file.

    Raises InputError when there is none, StudyFileError with every problem of its file.
    """
    files = _Files(study=Source(file=Path("study"), data={**_ANY_STUDY, OBJECTIVE: reference}))
    spec = _spec(files, None)
    if OBJECTIVE not in files.referenced:
        problem = files.problems[0]
        raise InputError(problem.message, problem.hint)
    if spec is None or files.broken:
        raise StudyFileError(files.report())
    return spec.objective


@dataclass
class _Files:
    """The study file and the files it refers to, with the problems found so far."""

    study: Source
    referenced: dict[str, Source] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)
    problems: list[Problem] = field(default_factory=list)
    in_file: Callable[[KeyPath], KeyPath] = lambda path: path

    @property
    def broken(self) -> bool:
        return bool(self.problems or any(source.findings for source in self._sources()))

    def _sources(self) -> list[Source]:
        return [self.study, *self.referenced.values()]

    def data(self) -> dict[str, Any]:
        """Return the study's data with referenced files in the place of their names."""
        found = {key: source.data for key, source in self.referenced.items() if source.data is not None}
        return {**(self.study.data or {}), **found}

    def unusable(self) -> list[KeyPath]:
        """Return the key paths, from the study's root, of values that were reported while reading."""
        inside = ((key, *path) for key, source in self.referenced.items() for path in source.unusable)
        return [*self.study.unusable, *inside]

    def folder(self, key: str) -> Path:
        """Return the folder that paths below `key` are relative to."""
        return self.referenced.get(key, self.study).file.parent

    def report(self) -> list[str]:
        """Return every problem as `file:line: key: problem; hint`, by file, then line."""
        found = [(source, finding) for source in self._sources() for finding in source.findings]
        found += [self._placed(problem) for problem in self.problems]
        order = {id(source): index for index, source in enumerate(self._sources())}
        found.sort(key=lambda item: (order[id(item[0])], item[1].line))
        return list(dict.fromkeys(_line(source, self._shown(source, finding)) for source, finding in found))

    def _shown(self, source: Source, finding: Finding) -> Finding:
        return replace(finding, path=self.in_file(finding.path)) if source is self.study else finding

    def _placed(self, problem: Problem) -> tuple[Source, Finding]:
        source, path = self.study, problem.path
        if path and path[0] in self.referenced and len(path) > 1:
            source, path = self.referenced[str(path[0])], path[1:]
        line = source.line(path)
        return source, Finding(line=line, path=path, message=problem.message, hint=problem.hint)


def _line(source: Source, finding: Finding) -> str:
    key = _key_text(finding.path)
    parts = [f"{source.file}:{finding.line}", *([key] if key else []), finding.message]
    return _one_line(": ".join(parts) + (f"; {finding.hint}" if finding.hint else ""))


def _one_line(text: str) -> str:
    """Return `text` as one line that does no harm to a terminal."""
    return "".join(char if char.isprintable() else " " for char in text)


def _key_text(path: KeyPath) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).removeprefix(".")


def _spec(files: _Files, read_incumbent: IncumbentReader | None) -> StudySpec | None:
    """Return the study, or None when its files alone show that there is none; problems go to `files`."""
    if files.study.data is None:
        return None
    for key in (SPACE, OBJECTIVE):
        _resolve(files, key)
    data = files.data()
    form, problems = validate(data, files.unusable())
    files.problems += problems
    incumbent = _incumbent(files, data, read_incumbent)
    files.problems += _missing_files(files, data)
    files.problems += _missing_space(data)
    if form is None or isinstance(form.search_space, str) or not isinstance(form.objective, ObjectiveForm):
        return None
    space = space_of(form.search_space, files.names.get(SPACE, "inline"))
    objective = objective_of(form.objective, files.names.get(OBJECTIVE, "inline"), files.folder(OBJECTIVE))
    spec = study_of(form, space=space, objective=objective, incumbent=incumbent)
    files.problems += _engine_problems(spec)
    return spec


def _resolve(files: _Files, key: str) -> None:
    """Read the file that `key` names, when it names one."""
    reference = (files.study.data or {}).get(key)
    if not isinstance(reference, str) or not reference:
        return
    file = _file(files, key, reference)
    if file is None:
        return
    source = read_source(file)
    if source.data is None and not _is_file(file):
        problem = source.findings[0]
        files.problems.append(Problem(path=(key,), message=f"{reference}: {problem.message}", hint=problem.hint))
    else:
        files.referenced[key] = source


def _name_of(file: Path) -> str:
    """Return the file's stem as a name that a dumped study may carry."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", file.stem).lstrip("._-")[:100] or "unnamed"


def _file(files: _Files, key: str, reference: str) -> Path | None:
    if reference.endswith((".yaml", ".yml")) or reference.startswith((".", "/")):
        files.names[key] = _name_of(Path(reference))
        return files.folder("") / reference
    shipped = _SHIPPED[key]()
    if reference not in shipped:
        kind = key.replace("_", " ")
        known = f"shipped: {', '.join(shipped)}; a path ends in .yaml"
        problem = Problem(
            path=(key,),
            message=f"no {kind} called {reference!r} is shipped",
            hint=did_you_mean(reference, shipped, known),
        )
        files.problems.append(problem)
        return None
    files.names[key] = reference
    return shipped[reference]


def _incumbent(files: _Files, data: Mapping[str, Any], read_incumbent: IncumbentReader | None) -> Args | None:
    """Return the incumbent's arguments; works on plain data, so that it is checked beside other problems."""
    given, kind = data.get("incumbent"), _look(data, "engine", "kind")
    if not isinstance(given, str):
        return given if isinstance(given, dict) else None
    if kind not in tuple(EngineKind):
        return None
    try:
        return (read_incumbent or _no_reader)(EngineKind(kind), _incumbent_text(files.folder(""), given))
    except InputError as error:
        files.problems.append(Problem(path=("incumbent",), message=error.message, hint=error.hint))
    except (OSError, ValueError) as error:
        files.problems.append(Problem(path=("incumbent",), message=str(error), hint="see the engine's own arguments"))
    return None


def _look(data: object, *keys: str) -> Any:  # noqa: ANN401 - a YAML value
    for key in keys:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _no_reader(kind: EngineKind, text: str) -> Args:
    raise InputError(f"{len(text)} characters for {kind.value} can't be read here", "give the arguments as a mapping")


def _incumbent_text(folder: Path, given: str) -> str:
    """Return the text of the incumbent: of the file that `given` names, else `given`, a command line."""
    file = folder / given
    if len(given.split()) > 1 and not _is_file(file):
        return given
    if not _is_file(file):
        raise InputError(f"there is no file {given!r}", "give a path relative to the study, or a whole command line")
    raw = file.read_bytes()[: MAX_BYTES + 1]
    if len(raw) > MAX_BYTES:
        raise InputError(f"{given} is larger than {MAX_BYTES // 1024} KiB", "give an engine YAML or a command line")
    return raw.decode("utf-8-sig")


def _is_file(file: Path) -> bool:
    try:
        return file.is_file()
    except OSError:  # a command line can be too long for a name
        return False


def _missing_files(files: _Files, data: Mapping[str, Any]) -> Iterable[Problem]:
    for keys in (("workload", "dataset"), ("workload", "lengths"), ("load", "trace", "file")):
        name = _look(data, OBJECTIVE, *keys)
        if isinstance(name, str) and not _is_file(files.folder(OBJECTIVE) / name):
            message, hint = f"there is no file {name!r}", "the path is relative to the file that names it"
            yield Problem(path=(OBJECTIVE, *keys), message=message, hint=hint)


def _missing_space(data: Mapping[str, Any]) -> Iterable[Problem]:
    if SPACE not in data and _look(data, "engine", "kind") != EngineKind.ENDPOINT:
        yield Problem(path=(SPACE,), message="is missing", hint="add it")


def _engine_problems(spec: StudySpec) -> Iterable[Problem]:
    kind, wanted = spec.engine.kind, spec.search_space.engine
    if kind is wanted or (kind is EngineKind.SIMULATED and wanted is EngineKind.VLLM):
        return
    message = f"the search space {spec.search_space.name} is for {wanted.value}, the study's engine is {kind.value}"
    yield Problem(path=(SPACE,), message=message, hint="choose a space for this engine")
