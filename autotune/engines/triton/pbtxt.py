"""Protobuf text, as Triton's config.pbtxt is written: mappings to text and back. Only what such files use.

A field that repeats is a list; a word without quotes (an enum's) is a `Word`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeGuard

_TOKEN = re.compile(
    r"""\s+|\#[^\n]*|(?P<text>"(?:[^"\\\n]|\\.)*")|(?P<number>-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?)(?![\w.])"""
    r"""|(?P<word>[A-Za-z_]\w*)|(?P<sign>[{}\[\]:,;<>])"""
)
_OPENS = {"{": "}", "<": ">"}
_STEP = "  "


class Word(str):
    """A value without quotes, as enums have."""

    __slots__ = ()


class PbtxtError(ValueError):
    """Text that is no protobuf text; the message says where."""


# --- writing ----------------------------------------------------------------------------------------------------------


def render(message: Mapping[str, Any], indent: str = "") -> str:
    """Return the fields of a message, a line each; None is left out."""
    return "".join(_field(name, value, indent) for name, value in message.items() if value is not None)


def _field(name: str, value: object, indent: str) -> str:
    if isinstance(value, Mapping):
        return f"{indent}{name} {{\n{render(value, indent + _STEP)}{indent}}}\n"
    if _of_messages(value):
        items = ",\n".join(_item(item, indent + _STEP) for item in value)
        return f"{indent}{name} [\n{items}\n{indent}]\n"
    return f"{indent}{name}: {_plain(value)}\n"


def _item(message: Mapping[str, Any], indent: str) -> str:
    """A message of a list: on one line, unless it holds such a list itself."""
    if _holds_messages(message):
        return f"{indent}{{\n{render(message, indent + _STEP)}{indent}}}"
    return f"{indent}{{ {_inline(message)} }}"


def _holds_messages(message: Mapping[str, Any]) -> bool:
    return any(
        _holds_messages(value) if isinstance(value, Mapping) else _of_messages(value) for value in message.values()
    )


def _inline(message: Mapping[str, Any]) -> str:
    return " ".join(
        f"{name} {{ {_inline(value)} }}" if isinstance(value, Mapping) else f"{name}: {_plain(value)}"
        for name, value in message.items()
        if value is not None
    )


def _of_messages(value: object) -> TypeGuard[Sequence[Mapping[str, Any]]]:
    return isinstance(value, list | tuple) and any(isinstance(item, Mapping) for item in value)


def _plain(value: object) -> str:
    return _values(value) if isinstance(value, list | tuple) else _scalar(value)


def _values(values: Sequence[object]) -> str:
    return f"[ {', '.join(map(_scalar, values))} ]" if values else "[ ]"


def _scalar(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Word):
        return str(value)
    return json.dumps(value) if isinstance(value, str) else str(value)


# --- reading ----------------------------------------------------------------------------------------------------------


def parse(text: str) -> dict[str, Any]:
    """Return a file's fields; one that is given more than once, or in brackets, is a list. Raises PbtxtError."""
    return _message(_Tokens(text), None)


class _Tokens:
    """Tokens of a text, one looked at ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = [*_tokens(text), ("end", "")]
        self._at = 0

    @property
    def next(self) -> tuple[str, str]:
        return self._tokens[self._at]

    def take(self) -> tuple[str, str]:
        token = self.next
        self._at += token[0] != "end"
        return token

    def skip(self, *signs: str) -> bool:
        """Take the next token if it is one of these signs."""
        if self.next[0] == "sign" and self.next[1] in signs:
            self.take()
            return True
        return False


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            line = text.count("\n", 0, at) + 1
            raise PbtxtError(f"line {line}: {text[at : at + 20].splitlines()[0]!r} is no protobuf text")
        at = match.end()
        if match.lastgroup is not None:
            yield match.lastgroup, match[match.lastgroup]


def _message(tokens: _Tokens, closing: str | None) -> dict[str, Any]:
    found: dict[str, Any] = {}
    while not (tokens.skip(closing) if closing else tokens.next[0] == "end"):
        kind, name = tokens.take()
        if kind != "word":
            raise PbtxtError(f"{name or 'the end'!r} stands where a field's name should")
        tokens.skip(":")
        _add(found, name, _value(tokens))
        tokens.skip(",", ";")
    return found


def _add(found: dict[str, Any], name: str, value: object) -> None:
    if name not in found:
        found[name] = value
        return
    before = found[name] if isinstance(found[name], list) else [found[name]]
    found[name] = [*before, *(value if isinstance(value, list) else [value])]


def _value(tokens: _Tokens) -> Any:  # noqa: ANN401  whatever a field may hold
    kind, text = tokens.take()
    if kind == "sign" and text in _OPENS:
        return _message(tokens, _OPENS[text])
    if kind == "sign" and text == "[":
        return _list(tokens)
    return _read_scalar(kind, text)


def _list(tokens: _Tokens) -> list[Any]:
    items: list[Any] = []
    while not tokens.skip("]"):
        items.append(_value(tokens))
        tokens.skip(",")
    return items


def _read_scalar(kind: str, text: str) -> Any:  # noqa: ANN401
    match kind:
        case "text":
            return json.loads(text)
        case "number":
            return float(text) if re.search(r"[.eE]", text) else int(text)
        case "word":
            return {"true": True, "false": False}.get(text, Word(text))
    raise PbtxtError(f"{text or 'the end'!r} stands where a value should")
