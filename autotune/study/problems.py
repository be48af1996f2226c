"""Validates the data of a study against the forms, and says what is wrong in plain words instead of pydantic's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from autotune.errors import Problem
from autotune.study.checks import OURS, did_you_mean
from autotune.study.forms import StudyForm
from autotune.study.tree import KeyPath

_UNKNOWN_KEY = ("extra_forbidden", "unexpected_keyword_argument")
_WANTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "text",
    "bool_type": "true or false",
    "list_type": "a list",
    "tuple_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "dataclass_type": "a mapping",
    "model_attributes_type": "a mapping",
}
_SEVERAL_FORMS: dict[KeyPath, str] = {
    ("search_space",): "a shipped name, a path or a mapping",
    ("objective",): "a shipped name, a path or a mapping",
    ("incumbent",): "a path, a command line or a mapping",
    ("engine", "command"): "text or a list",
    ("objective", "load", "capacity"): "rps, concurrency or a mapping",
    ("finals", "rounds"): "auto or a whole number from 1 to 50",
}
_BOUNDS = {
    "greater_than": ("gt", "must be above"),
    "greater_than_equal": ("ge", "must be at least"),
    "less_than": ("lt", "must be below"),
    "less_than_equal": ("le", "must be at most"),
}
_PATTERNS = {
    "name": "start with a letter or digit, then letters, digits, '.', '_' or '-', at most 100",
    "parameters": "use the engine's own name with underscores, as max_num_seqs",
    "derived": "use the engine's own name with underscores, as max_model_len",
    "env": "use letters, digits and '_', as HF_HOME",
}


def validate(data: dict[str, Any], unusable: Iterable[KeyPath]) -> tuple[StudyForm | None, list[Problem]]:
    """Return the form of a study (None when anything is wrong) and every problem; `unusable` was reported before."""
    form, errors = _attempt(data)
    pruned = _without(data, errors)
    if pruned is not None:  # checks over several keys did not run beside an unknown key
        errors += [error for error in _attempt(pruned)[1] if error["loc"] not in {known["loc"] for known in errors}]
    problems = list(_in_words(data, errors, tuple(unusable)))
    return (None if errors else form), problems


def _attempt(data: dict[str, Any]) -> tuple[StudyForm | None, list[ErrorDetails]]:
    try:
        return StudyForm.model_validate_json(json.dumps(data)), []
    except ValidationError as error:
        return None, error.errors(include_url=False)


def _without(data: dict[str, Any], errors: list[ErrorDetails]) -> dict[str, Any] | None:
    """Return a copy of `data` without its unknown keys and metrics, None when there are none."""
    paths = {_path(data, error) for error in errors if error["type"] in _UNKNOWN_KEY or error["loc"][-1:] == ("[key]",)}
    if not paths:
        return None
    copy = json.loads(json.dumps(data))
    for path in sorted(paths, key=len, reverse=True):  # what lies inside goes before what holds it
        del _at(copy, path[:-1])[path[-1]]
    return dict(copy)


def _at(data: Any, path: KeyPath) -> Any:  # noqa: ANN401 - a JSON value
    for key in path:
        data = data[key]
    return data


def _has(value: object, key: str | int) -> bool:
    if isinstance(value, dict):
        return key in value
    return isinstance(value, list) and isinstance(key, int) and 0 <= key < len(value)


def _path(data: object, error: ErrorDetails) -> KeyPath:
    """Return where in `data` the error is: its location without the tags of unions; the missing key stays."""
    path: list[str | int] = []
    for key in error["loc"]:
        if _has(data, key):
            data = _at(data, (key,))
            path.append(key)
    if error["type"] == "missing":
        path.append(error["loc"][-1])
    return tuple(path)


def _in_words(data: dict[str, Any], errors: list[ErrorDetails], unusable: tuple[KeyPath, ...]) -> Iterator[Problem]:
    by_path: dict[KeyPath, list[ErrorDetails]] = {}
    for error in errors:
        by_path.setdefault(_path(data, error), []).append(error)
    for path, group in by_path.items():
        if any(path[: len(bad)] == bad for bad in unusable):
            continue
        each_form_refused = len(group) > 1 and path in _SEVERAL_FORMS
        if each_form_refused or all(error["type"] in _WANTED for error in group):
            yield _wrong_type(path, group)
        else:
            yield from (problem for error in group for problem in _one(path, error))


def _wrong_type(path: KeyPath, group: list[ErrorDetails]) -> Problem:
    wanted = " or ".join(dict.fromkeys(_WANTED.get(error["type"], "") for error in group))
    hint = "put it in quotes" if wanted == "text" and isinstance(group[0]["input"], int | float) else ""
    wanted = _SEVERAL_FORMS.get(path, wanted)
    return Problem(path=path, message=f"expected {wanted}, got {_shown(group[0]['input'])}", hint=hint)


def _one(path: KeyPath, error: ErrorDetails) -> Iterator[Problem]:
    kind, context, value = error["type"], error.get("ctx", {}), error["input"]
    if kind == OURS:
        for fault in context["faults"]:
            yield Problem(path=path + fault.at, message=fault.message, hint=fault.hint)
    elif kind in _UNKNOWN_KEY:
        yield _unknown_key(path)
    elif kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        yield Problem(path=path, message=f"{words} {context[key]:g}, got {_shown(value)}")
    elif kind in ("enum", "literal_error"):
        yield _not_listed(path, value, str(context["expected"]))
    else:
        yield Problem(path=path, **_other(path, error))


def _unknown_key(path: KeyPath) -> Problem:
    known = keys_at(StudyForm.model_json_schema(by_alias=True), path[:-1])
    hint = did_you_mean(str(path[-1]), known, f"known: {', '.join(sorted(known))}" if known else "")
    return Problem(path=path, message="unknown key", hint=hint)


def _not_listed(path: KeyPath, value: object, expected: str) -> Problem:
    names = expected.replace("'", "").replace(" or ", ", ").split(", ")
    hint = did_you_mean(str(value), names, f"known: {', '.join(names)}")
    return Problem(path=path, message=f"{_shown(value)} is not known here", hint=hint)


def _other(path: KeyPath, error: ErrorDetails) -> dict[str, str]:
    kind, value = error["type"], error["input"]
    if kind == "missing":
        what = "a value is missing" if isinstance(path[-1], int) else "is missing"
        return {"message": what, "hint": "give two values" if isinstance(path[-1], int) else "add it"}
    if kind == "union_tag_not_found":
        return _no_single_form(path)
    if kind in ("string_too_short", "too_short"):
        return {"message": "is empty", "hint": "give a value, or leave the key out"}
    if kind == "too_long":
        return {"message": f"has too many values: {_shown(value)}", "hint": "give two values"}
    if kind == "string_pattern_mismatch":
        where = next((key for key in reversed(path) if key in _PATTERNS), "name")
        return {"message": f"{_shown(value)} can't be used as a name", "hint": _PATTERNS[str(where)]}
    return {"message": error["msg"], "hint": ""}


def _no_single_form(path: KeyPath) -> dict[str, str]:
    if "parameters" in path:
        return {"message": "needs exactly one of int, float and choice", "hint": "as {int: [1, 8]} or {choice: [a, b]}"}
    if "slos" in path:
        return {"message": "expected a number, {min: x} or {max: x}", "hint": "a number is an upper limit"}
    if "turns" in path:
        return {"message": "expected a number, {uniform: [low, high]} or {lognormal: {…}}", "hint": "as 5"}
    return {
        "message": "expected a number of tokens, {uniform: [low, high]} or {lognormal: {…}}",
        "hint": "as 512, or {lognormal: {median: 400, sigma: 0.8, low: 50, high: 2000}}",
    }


def _shown(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 60 else f"{text[:57]}..."


def keys_at(schema: Mapping[str, Any], path: KeyPath) -> set[str]:
    """Return the keys that the JSON Schema allows in the mapping at `path`, over every alternative there."""
    found = [schema]
    for key in path:
        found = [below for node in found for variant in _variants(schema, node) for below in _below(variant, key)]
    return {
        str(name) for node in found for variant in _variants(schema, node) for name in variant.get("properties", ())
    }


def _variants(schema: Mapping[str, Any], node: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    if "$ref" in node:
        yield from _variants(schema, schema["$defs"][node["$ref"].rsplit("/", 1)[-1]])
    else:
        yield node
    for alternative in (*node.get("anyOf", ()), *node.get("oneOf", ())):
        yield from _variants(schema, alternative)


def _below(node: Mapping[str, Any], key: str | int) -> Iterator[Mapping[str, Any]]:
    properties, rest = node.get("properties", {}), node.get("additionalProperties")
    if key in properties:
        yield properties[key]
    elif isinstance(rest, dict):
        yield rest
    yield from node.get("patternProperties", {}).values()
    if isinstance(key, int) and isinstance(node.get("items"), dict):
        yield node["items"]
