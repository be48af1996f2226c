"""The expressions of search spaces: read once into a checked tree, evaluated by simpleeval, never by Python's own eval.

Only names, numbers, text, lists to look in, arithmetic, comparisons, and/or/not, `a if b else c` and four functions.
A dotted name (`kv_cache_config.dtype`) is one name; nothing has attributes.
"""

from __future__ import annotations

import ast
import operator
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from simpleeval import InvalidExpression, SimpleEval

from autotune.records.spec import ParamValue

MAX_LENGTH = 400
MAX_DEPTH = 24
MAX_NUMBER = 10**18  # beyond any count of bytes or tokens, and cheap to compute with
MAX_EXPONENT = 64


class ExpressionError(ValueError):
    """The text is no expression that we allow, or it can't be evaluated for these values."""


def ceil_div(value: float, divisor: float) -> float:
    """Return value / divisor rounded up."""
    return -(-value // divisor)


def round_up(value: float, multiple: float) -> float:
    """Return the smallest multiple of `multiple` that is at least `value`."""
    return ceil_div(value, multiple) * multiple


FUNCTIONS: dict[str, Callable[..., Any]] = {"min": min, "max": max, "ceil_div": ceil_div, "round_up": round_up}

_ALLOWED = (
    ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.USub, ast.UAdd, ast.BinOp, ast.Add, ast.Sub, ast.Mult,
    ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.Compare, ast.Eq, ast.NotEq, ast.Lt, ast.LtE, ast.Gt, ast.GtE, ast.In,
    ast.NotIn, ast.IfExp, ast.Call, ast.Name, ast.Load, ast.Constant, ast.List, ast.Tuple,
)  # fmt: skip


_MIRRORED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.Gt, ast.LtE: ast.GtE, ast.Gt: ast.Lt, ast.GtE: ast.LtE,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Expression:
    """A checked expression; `names` are all the values that it needs."""

    text: str
    tree: ast.expr = field(compare=False, repr=False)
    names: frozenset[str]

    def value(self, env: Mapping[str, object]) -> ParamValue | None:
        """Return the value with the names in `env`, None when one of them is unknown. Raises ExpressionError."""
        if not self.names <= env.keys():
            return None
        try:
            result = _Evaluator(env).eval(self.text, previously_parsed=self.tree)
        except (InvalidExpression, ArithmeticError, TypeError, ValueError) as error:
            raise ExpressionError(f"`{self.text}` can't be evaluated: {error}") from error
        if not isinstance(result, bool | int | float | str):
            raise ExpressionError(f"`{self.text}` gives {result!r}, not a number, text, true or false")
        if not isinstance(result, str) and not abs(result) <= MAX_NUMBER:
            raise ExpressionError(f"`{self.text}` gives a number that is too large")
        return result

    def holds(self, env: Mapping[str, object]) -> bool:
        """Return whether it is true, or needs a value that is unknown. Raises ExpressionError."""
        value = self.value(env)
        return value is None or bool(value)

    def bounds(self, name: str, env: Mapping[str, object]) -> Iterator[tuple[type[ast.cmpop], float]]:
        """Yield each (comparison, number) that `name` must obey for this to hold: (`ast.LtE`, 8) is `name <= 8`.

        Only what is plain from the text: comparisons of `name` alone with something known, joined by `and`.
        Raises ExpressionError.
        """
        for left, comparison, right in _comparisons(self.tree):
            if isinstance(left, ast.Name) and left.id == name:
                other, kind = right, type(comparison)
            elif isinstance(right, ast.Name) and right.id == name:
                other, kind = left, _MIRRORED.get(type(comparison), type(comparison))
            else:
                continue
            value = Expression(ast.unparse(other), other, _names(other)).value(env)
            if isinstance(value, int | float):
                yield kind, value


@cache
def parse(text: str) -> Expression:
    """Return the checked expression. Raises ExpressionError saying what is not allowed."""
    if len(text) > MAX_LENGTH:
        raise ExpressionError(f"longer than {MAX_LENGTH} characters")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)  # `1 is 1`: refused below, with our own words
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        reason = error.msg if isinstance(error, SyntaxError) else "nested too deeply"
        raise ExpressionError(f"`{text}` is not an expression: {reason}") from None
    _check_depth(tree)
    tree = _JoinDots().visit(tree)
    for node in ast.walk(tree):
        _check(node)
    return Expression(text, tree, _names(tree))


def _names(tree: ast.expr) -> frozenset[str]:
    nodes = list(ast.walk(tree))
    called = {id(node.func) for node in nodes if isinstance(node, ast.Call)}
    return frozenset(node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in called)


def _comparisons(tree: ast.expr) -> Iterator[tuple[ast.expr, ast.cmpop, ast.expr]]:
    """Yield every comparison that must be true for `tree` to be."""
    if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And):
        for part in tree.values:
            yield from _comparisons(part)
    if isinstance(tree, ast.Compare):
        yield from zip([tree.left, *tree.comparators], tree.ops, tree.comparators, strict=False)


def _check_depth(tree: ast.expr) -> None:
    """Refuse deep trees before anything walks them recursively."""
    level: list[ast.AST] = [tree]
    for _ in range(MAX_DEPTH):
        level = [child for node in level for child in ast.iter_child_nodes(node)]
    if level:
        raise ExpressionError(f"nested deeper than {MAX_DEPTH} levels")


class _JoinDots(ast.NodeTransformer):
    """Makes `a.b.c` one name, so that no attribute is ever looked up."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.Name:
        owner = self.visit(node.value)
        if not isinstance(owner, ast.Name):
            raise ExpressionError("only a name may stand before a dot")
        return ast.Name(id=f"{owner.id}.{node.attr}", ctx=ast.Load())


def _check(node: ast.AST) -> None:
    if not isinstance(node, _ALLOWED):
        raise ExpressionError(f"{_what(node)} is not allowed in an expression")
    if isinstance(node, ast.Constant):
        _check_constant(node.value)
    if isinstance(node, ast.Call) and (
        not isinstance(node.func, ast.Name) or node.func.id not in FUNCTIONS or node.keywords or len(node.args) < 2
    ):
        raise ExpressionError(f"only {', '.join(FUNCTIONS)} can be called, with two values or more")


def _check_constant(value: object) -> None:
    if not isinstance(value, bool | int | float | str):
        raise ExpressionError(f"{value!r} is not allowed in an expression")
    if isinstance(value, int | float) and not abs(value) <= MAX_NUMBER:
        raise ExpressionError("a number is too large")


def _what(node: ast.AST) -> str:
    words = {"Subscript": "indexing", "Lambda": "a function", "JoinedStr": "a format string", "Starred": "a star"}
    name = type(node).__name__
    return "a comprehension" if name.endswith(("Comp", "GeneratorExp")) else words.get(name, name)


# --- evaluation -----------------------------------------------------------------------------------------------------


def _numeric(function: Callable[[Any, Any], Any]) -> Callable[[object, object], float]:
    """Guard arithmetic: numbers only, and none that grows out of bounds."""

    def guarded(left: object, right: object) -> float:
        if not isinstance(left, int | float) or not isinstance(right, int | float):
            raise TypeError("arithmetic needs numbers")
        result = function(left, right)
        if not isinstance(result, int | float) or not abs(result) <= MAX_NUMBER:
            raise ArithmeticError("the result is too large")
        return result

    return guarded


def _power(base: float, exponent: float) -> Any:  # noqa: ANN401 - what Python's power gives, checked by `_numeric`
    if abs(exponent) > MAX_EXPONENT:
        raise ArithmeticError(f"the exponent is above {MAX_EXPONENT}")
    return base**exponent


_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: _numeric(operator.add),
    ast.Sub: _numeric(operator.sub),
    ast.Mult: _numeric(operator.mul),
    ast.Div: _numeric(operator.truediv),
    ast.FloorDiv: _numeric(operator.floordiv),
    ast.Mod: _numeric(operator.mod),
    ast.Pow: _numeric(_power),
    ast.USub: operator.neg,
    ast.UAdd: operator.pos,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}


class _Evaluator(SimpleEval):  # type: ignore[misc]  # simpleeval has no types
    """simpleeval with our operators and functions, and lists to look in."""

    def __init__(self, names: Mapping[str, object]) -> None:
        super().__init__(operators=_OPERATORS, functions=FUNCTIONS, names=dict(names))
        self.nodes[ast.List] = self.nodes[ast.Tuple] = lambda node: [self._eval(item) for item in node.elts]
