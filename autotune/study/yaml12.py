"""PyYAML's composer with the scalars of the YAML 1.2 core schema, which fewer values surprise, and a limit on depth."""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

MAX_DEPTH = 32

NULL, BOOL, INT, FLOAT, STR, MAP, SEQ = (
    f"tag:yaml.org,2002:{name}" for name in ("null", "bool", "int", "float", "str", "map", "seq")
)


class _Loader(yaml.SafeLoader):
    """PyYAML's composer with the scalars of YAML 1.2 and a limit on depth."""

    yaml_implicit_resolvers = {}  # noqa: RUF012 - PyYAML's own attribute, filled below

    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


for _tag, _pattern, _first in (
    (NULL, r"~|null|Null|NULL|", "~nN\0"),
    (BOOL, r"true|True|TRUE|false|False|FALSE", "tTfF"),
    (INT, r"[-+]?(0|[1-9][0-9]*)|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (FLOAT, r"[-+]?((\.[0-9]+|[0-9]+\.[0-9]*)([eE][-+]?[0-9]+)?|[0-9]+[eE][-+]?[0-9]+)", "-+.0123456789"),
    (FLOAT, r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)", "-+."),
):
    # A plain scalar is resolved by the first pattern that matches; the empty scalar is looked up under "".
    _firsts = ["" if first == "\0" else first for first in _first]
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})\Z"), _firsts)


def documents_of(text: str) -> Iterator[yaml.Node]:
    """Yield the root node of every document in `text`. Raises yaml.YAMLError."""
    loader = _Loader(text)
    try:
        while loader.check_node():
            node = loader.get_node()
            if node is not None:
                yield node
    finally:
        loader.dispose()
