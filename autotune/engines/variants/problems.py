"""What is wrong with a study's variants, told before anything is launched."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from autotune.engines.command import program_path
from autotune.errors import Problem
from autotune.records.spec import Choice, EngineKind, ParameterSpec, StudySpec
from autotune.records.variants import BASE, CHECKPOINT, OUTPUT, VariantSpec


def variant_problems(spec: StudySpec) -> Iterable[Problem]:
    """Return every problem: variants that can't be made here, and spaces that choose none, or one that isn't there."""
    if spec.variants and spec.engine.kind is EngineKind.ENDPOINT:
        return [Problem(path=("variants",), message="has no effect: nothing is launched", hint="remove it")]
    named = [problem for variant in spec.variants for problem in _of_variant(variant)]
    return [*named, *_of_space(spec)]


def _of_variant(variant: VariantSpec) -> Iterator[Problem]:
    path = ("variants", variant.name)
    if variant.model is not None and variant.model.startswith(("/", "./", "../", "~")):
        if not Path(variant.model).expanduser().exists():
            yield Problem(path=(*path, "model"), message=f"there is nothing in {variant.model}", hint="check the path")
        return
    for index, name in enumerate(variant.inputs):
        if not Path(name).expanduser().exists():
            hint = "the path is relative to the folder in which autotune is started, as the command's words are"
            yield Problem(path=(*path, "inputs", index), message=f"there is no file {name!r}", hint=hint)
    if variant.command and not any(OUTPUT in word for word in variant.command):
        hint = f"write {OUTPUT} where the folder of the new checkpoint is wanted"
        yield Problem(path=(*path, "command"), message="says nowhere what to write", hint=hint)
    if variant.command and program_path(variant.command, variant.env) is None:
        hint = "give its path, or install it; the study's engine is not where it is looked for"
        yield Problem(path=(*path, "command"), message=f"there is no program {variant.command[0]!r}", hint=hint)


def _of_space(spec: StudySpec) -> Iterator[Problem]:
    known = {variant.name for variant in spec.variants}
    found = [parameter for parameter in spec.search_space.parameters if parameter.name == CHECKPOINT]
    used: set[object] = set()
    for parameter in found:
        used |= {*parameter.domain.values} if isinstance(parameter.domain, Choice) else set()
        yield from _of_parameter(parameter, known)
    for name in sorted(known - used):
        hint = f"add it to the choices of {CHECKPOINT}, or remove it"
        yield Problem(path=("variants", name), message="is chosen by no candidate", hint=hint)


def _of_parameter(parameter: ParameterSpec, known: set[str]) -> Iterator[Problem]:
    path = ("search_space", "parameters", parameter.name)
    if not isinstance(parameter.domain, Choice):
        yield Problem(path=path, message="a checkpoint is chosen by its name", hint="write {choice: [base, …]}")
        return
    if parameter.when is not None:
        hint = f"put the condition on the other parameters, as `when: {CHECKPOINT} == 'base'`"
        yield Problem(path=(*path, "when"), message="the checkpoint is chosen first", hint=hint)
    for index, value in enumerate(parameter.domain.values):
        if value not in known and value != BASE:
            hint = f"there are: {', '.join([BASE, *sorted(known)])}"
            message = f"{value!r} is no variant of this study"
            yield Problem(path=(*path, "choice", index), message=message, hint=hint)
