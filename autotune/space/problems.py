"""What is wrong with a search space, for the study's reader: found before anything is launched."""

from __future__ import annotations

import difflib
import random
from collections.abc import Iterable, Iterator
from dataclasses import replace

from autotune.errors import Problem
from autotune.records.spec import StudySpec
from autotune.space.build import Impossible, build
from autotune.space.environment import WORKLOAD_NAMES, flat
from autotune.space.expression import Expression, ExpressionError, parse
from autotune.space.space import RuledOut, Space

KeyPath = tuple[str | int, ...]

DRAWS = 300  # candidates tried for each space; half of their values are ends of ranges, where comparisons are decided


def space_problems(spec: StudySpec) -> Iterable[Problem]:
    """Return every problem of the study's search space: bad expressions, unknown names, conditions in a circle, and
    rules that no candidate can obey.

    GPUs are counted only when the study names them; otherwise what depends on them is left to `build_space`.
    """
    problems = list(_expression_problems(spec))
    return problems or list(_impossible(spec))


def _expression_problems(spec: StudySpec) -> Iterator[Problem]:
    space = spec.search_space
    derived = set(space.derived)
    names = {parameter.name for parameter in space.parameters}
    known = names | set(dict(flat(spec.engine.args))) | set(spec.engine.args) | set(WORKLOAD_NAMES)
    for path, text, allowed in _expressions(spec, known, derived):
        yield from _in_expression(path, text, allowed)
    for name in sorted(derived & names):
        message, hint = "is both derived and a parameter", "keep one of them"
        yield Problem(path=("search_space", "derived", name), message=message, hint=hint)


def _expressions(spec: StudySpec, known: set[str], derived: set[str]) -> Iterator[tuple[KeyPath, str, set[str]]]:
    """Yield every expression with its place and the names it may use: only rules may use derived values."""
    space = spec.search_space
    for parameter in space.parameters:
        if parameter.when is not None:
            own = known - {parameter.name}
            yield ("search_space", "parameters", parameter.name, "when"), parameter.when, own
    for name, text in space.derived.items():
        yield ("search_space", "derived", name), text, known - {name}
    for index, text in enumerate(space.rules):
        yield ("search_space", "rules", index), text, known | derived


def _in_expression(path: KeyPath, text: str, allowed: set[str]) -> Iterator[Problem]:
    try:
        expression = parse(text)
    except ExpressionError as error:
        yield Problem(
            path=path, message=str(error), hint="allowed: names, numbers, comparisons, and, or, not, min, max"
        )
        return
    for name in sorted(expression.names - allowed):
        close = difflib.get_close_matches(name, sorted(allowed), n=1)
        hint = f"did you mean {close[0]}?" if close else f"known: {', '.join(sorted(allowed))}"
        yield Problem(path=path, message=f"there is no {name!r} here", hint=hint)


def _impossible(spec: StudySpec) -> Iterator[Problem]:
    gpus = spec.hardware.gpus
    try:
        space = build(spec, len(gpus) if gpus else None)
    except Impossible as error:
        yield error.problem
    except ExpressionError as error:
        yield Problem(path=("search_space",), message=str(error), hint="correct the expression")
    else:
        yield from _never_obeyed(space)


def _never_obeyed(space: Space) -> Iterator[Problem]:
    """Yield the rules that no candidate drawn at random obeys."""
    for index, rule in enumerate(space.rules):
        refusals = list(_refusals(space, rule))
        if len(refusals) == DRAWS:
            message = f"none of {DRAWS} candidates obeys it: {refusals[0]}"
            yield Problem(path=("search_space", "rules", index), message=message, hint="change the rule or the ranges")


def _refusals(space: Space, rule: Expression) -> Iterator[str]:
    rng, alone = random.Random(0), replace(space, rules=(rule,))  # noqa: S311 - no cryptography
    for _ in range(DRAWS):
        drawn = alone.sample(rng, ends_ratio=0.5)
        if not isinstance(drawn, RuledOut):
            return
        yield drawn.reason
