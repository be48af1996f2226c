from __future__ import annotations

import ast
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.space.expression import ExpressionError, parse

ENV = {"a": 5, "b": 2.5, "on": True, "off": False, "word": "fp8", "kv.dtype": "auto", "zero": 0}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a + 2 * 3 - 1", 10),
        ("a // 2 + a % 2", 3),
        ("a / 2", 2.5),
        ("2 ** 10", 1024),
        ("-a", -5),
        ("a >= 5 and b < 3", True),
        ("on and not off", True),
        ("off or word == 'fp8'", True),
        ("1 < a <= 5 != 6", True),
        ("word in ['fp8', 'nvfp4']", True),
        ("a not in (1, 2)", True),
        ("kv.dtype == 'auto'", True),
        ("a if off else b", 2.5),
        ("max(a, b, 1) + min(a, b)", 7.5),
        ("ceil_div(a, 2)", 3),
        ("round_up(a, 4)", 8),
        (" a ", 5),
    ],
)
def test_values(text: str, value: object) -> None:
    found = parse(text).value(ENV)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "names"),
    [("a + b.c.d > max(e, 1)", {"a", "b.c.d", "e"}), ("1 < 2", set()), ("max", {"max"}), ("x in ['y']", {"x"})],
)
def test_names_are_collected(text: str, names: set[str]) -> None:
    assert parse(text).names == names


def test_an_unknown_name_leaves_the_value_open_and_the_rule_vacuous() -> None:
    rule = parse("a > 100 and missing")
    assert rule.value(ENV) is None
    assert rule.holds(ENV)
    assert not parse("a > 100").holds(ENV)
    assert not parse("zero").holds(ENV)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("__import__('os').system('touch x')", "only a name may stand before a dot"),
        ("().__class__.__bases__[0].__subclasses__()", "indexing is not allowed|only min, max|only a name"),
        ("(1).real", "only a name may stand before a dot"),
        ("'a'.join(['b'])", "only a name may stand before a dot"),
        ("open('/etc/passwd', 'r')", "only min, max, ceil_div, round_up can be called"),
        ("eval('1', '2')", "only min, max"),
        ("max(a, b, key=print)", "only min, max"),
        ("max(*a, b)", "a star is not allowed"),
        ("min(a)", "with two values or more"),
        ("[x for x in (1, 2)]", "a comprehension is not allowed"),
        ("max((x for x in a), 1)", "a comprehension is not allowed"),
        ("(lambda: 1)()", "only min, max|a function is not allowed"),
        ("lambda: 1", "a function is not allowed"),
        ("a[0]", "indexing is not allowed"),
        ("f'{a}'", "a format string is not allowed"),
        ("{1: 2}", "Dict is not allowed"),
        ("{1, 2}", "Set is not allowed"),
        ("a is b", "Is is not allowed"),
        ("a @ b", "MatMult is not allowed"),
        ("1 << 99", "LShift is not allowed"),
        ("~a", "Invert is not allowed"),
        ("await a", "Await is not allowed"),
        ("None", "None is not allowed"),
        ("b'x'", "b'x' is not allowed"),
        ("1j", "1j is not allowed"),
        ("1e400", "a number is too large"),
        ("9" * 30, "a number is too large"),
        ("a = 1", "is not an expression"),
        ("a := 1", "is not an expression"),
        ("import os", "is not an expression"),
        ("a; b", "is not an expression"),
        ("", "is not an expression"),
        ("a\0", "is not an expression"),
        ("(" * 150, "is not an expression"),
        ("a + " * 99 + "a", "nested deeper than 24"),
        ("-" * 300 + "a", "nested deeper than 24"),
        ("a" + ".a" * 100, "nested deeper than 24"),
        ("a" * 401, "longer than 400 characters"),
    ],
)
def test_what_is_refused_when_read(text: str, message: str) -> None:
    with pytest.raises(ExpressionError, match=message):
        parse(text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("9 ** 9 ** 9", "the exponent is above 64"),
        ("10 ** 60", "the result is too large"),
        ("(10 ** 17) * (10 ** 17)", "the result is too large"),
        ("(-8) ** 0.5", "the result is too large"),
        ("'a' * 10 ** 9", "arithmetic needs numbers"),
        ("'a' + 'b'", "arithmetic needs numbers"),
        ("[1] * 3", "arithmetic needs numbers"),
        ("word % a", "arithmetic needs numbers"),
        ("a / zero", "division by zero"),
        ("ceil_div(a, zero)", "zero"),
        ("word < a", "not supported between"),
        ("1 in a", "not iterable"),
        ("[a, b]", "not a number, text, true or false"),
        ("ceil_div(10 ** 18, 1 / 10 ** 18)", "a number that is too large"),
    ],
)
def test_what_is_refused_when_evaluated(text: str, message: str) -> None:
    begin = time.monotonic()
    with pytest.raises(ExpressionError, match=message):
        parse(text).value(ENV)
    assert time.monotonic() - begin < 1


def test_a_chain_of_attributes_is_just_an_unknown_name() -> None:
    rule = parse("a.__class__.__mro__")
    assert rule.names == {"a.__class__.__mro__"}
    assert rule.value(ENV) is None


@given(st.text(st.sampled_from("ab.()[]{}'\"+-*/%<>=! ,:0123456789eorandti_\n"), max_size=60))
def test_no_text_does_anything_but_give_a_value_or_our_error(text: str) -> None:
    try:
        value = parse(text).value(ENV)
    except ExpressionError:
        return
    assert value is None or isinstance(value, bool | int | float | str)


@pytest.mark.parametrize(
    ("text", "bounds"),
    [
        ("x <= 8", [(ast.LtE, 8)]),
        ("8 >= x", [(ast.LtE, 8)]),
        ("a < x", [(ast.Gt, 5)]),
        ("1 < x <= max(a, 7)", [(ast.Gt, 1), (ast.LtE, 7)]),
        ("x >= 2 and (x < 9 and on)", [(ast.GtE, 2), (ast.Lt, 9)]),
        ("x <= 8 or on", []),
        ("not x <= 8", []),
        ("x + 1 <= 8", []),
        ("x <= x", []),
        ("x % 2 == 0", []),
    ],
)
def test_bounds_are_read_off_plain_comparisons_only(text: str, bounds: list[tuple[type, float]]) -> None:
    assert list(parse(text).bounds("x", ENV)) == bounds
