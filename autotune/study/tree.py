"""YAML text to plain data with a line number for every key: strict, bounded, and without running anything.

The scalars are those of the YAML 1.2 core schema (`1e3` is a number, dates are text), so that no value changes its type
by surprise. Everything that can't be used becomes a `Finding`, and reading goes on to find the rest.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from autotune.study.yaml12 import BOOL, FLOAT, INT, MAP, MAX_DEPTH, NULL, SEQ, STR, documents_of

KeyPath = tuple[str | int, ...]

MAX_BYTES = 256 * 1024  # a study is a page or two
MAX_NODES = 10_000  # after aliases are expanded: what stops an alias bomb
MAX_INT = 2**63 - 1  # what JSON readers and engines can hold

_SURPRISING = re.compile(r"yes|no|on|off|[-+]?0[0-9]+", re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing wrong in a file: its line (from 1), the key path from that file's root, what, and what to do."""

    line: int
    path: KeyPath
    message: str
    hint: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A file as read. `data` is None when there is no mapping to go on with; `unusable` are values already reported."""

    file: Path
    data: dict[str, Any] | None = None
    lines: Mapping[KeyPath, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    unusable: frozenset[KeyPath] = frozenset()

    def line(self, path: KeyPath) -> int:
        """Return the line of `path`, or of its nearest ancestor that has one."""
        return next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 1)


class _TooLargeError(Exception):
    """The document expands to more than we read."""


@dataclass
class _Builder:
    """Turns nodes into data, remembering lines and collecting findings."""

    lines: dict[KeyPath, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    unusable: set[KeyPath] = field(default_factory=set)
    nodes: int = 0

    def report(self, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        self.findings.append(Finding(line=_line(node), path=path, message=message, hint=hint))

    def refuse(self, node: yaml.Node, path: KeyPath, message: str, hint: str) -> None:
        """Report, and mark the value as unusable so that later checks don't report it again."""
        self.report(node, path, message, hint)
        self.unusable.add(path)

    def build(self, node: yaml.Node, path: KeyPath) -> object:
        self.nodes += 1
        if self.nodes > MAX_NODES or len(path) > MAX_DEPTH:
            raise _TooLargeError
        self.lines.setdefault(path, _line(node))
        if isinstance(node, yaml.MappingNode) and node.tag == MAP:
            return self.mapping(node, path)
        if isinstance(node, yaml.SequenceNode) and node.tag == SEQ:
            return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
        if isinstance(node, yaml.ScalarNode):
            return self.scalar(node, path)
        self.tagged(node, path)
        return None

    def tagged(self, node: yaml.Node, path: KeyPath) -> None:
        tag = str(node.tag).replace("tag:yaml.org,2002:", "!!")
        self.refuse(node, path, f"the tag {tag} is not allowed", "leave the tag out")

    def mapping(self, node: yaml.MappingNode, path: KeyPath) -> dict[str, object]:
        data: dict[str, object] = {}
        for key_node, value_node in node.value:
            key = self.key(key_node, path)
            if key is None:
                continue
            child = (*path, key)
            if key in data:
                first = self.lines[child]
                self.report(key_node, child, f"given twice, first in line {first}", "keep one of the two")
                continue
            self.lines[child] = _line(key_node)
            data[key] = self.build(value_node, child)
        return data

    def key(self, node: yaml.Node, path: KeyPath) -> str | None:
        if isinstance(node, yaml.ScalarNode) and node.tag == STR:
            if node.value != "<<" or node.style:
                return str(node.value)
            self.report(node, path, "merge keys (<<) are not supported", "write the keys out")
            return None
        shown = repr(node.value) if isinstance(node, yaml.ScalarNode) else "a list or mapping"
        self.report(node, path, f"a key must be text, got {shown}", "put it in quotes")
        return None

    def scalar(self, node: yaml.ScalarNode, path: KeyPath) -> object:
        if node.tag not in (NULL, BOOL, INT, FLOAT, STR):
            self.tagged(node, path)
            return None
        if node.tag == STR:
            return self.text(node, path)
        if node.tag == NULL:
            return None
        if node.tag == BOOL:
            return self.boolean(node, path)
        return self.number(node, path)

    def boolean(self, node: yaml.ScalarNode, path: KeyPath) -> bool | None:
        if node.value.lower() in ("true", "false"):
            return bool(node.value.lower() == "true")
        self.refuse(node, path, f"{_short(node.value)} is neither true nor false", "write true or false")
        return None

    def number(self, node: yaml.ScalarNode, path: KeyPath) -> int | float | None:
        value = _number(node.tag, node.value)
        if value is None or (isinstance(value, int) and abs(value) > MAX_INT):
            self.refuse(node, path, f"{_short(node.value)} is not a number that fits", "give a number below 2^63")
            return None
        if not math.isfinite(value):
            self.refuse(node, path, f"{_short(node.value)} is not a finite number", "give a finite number")
            return None
        return value

    def text(self, node: yaml.ScalarNode, path: KeyPath) -> str | None:
        text = str(node.value)
        if not node.style and _SURPRISING.fullmatch(text):
            hint = "write true or false" if text.isalpha() else "write the number without leading zeros"
            self.refuse(node, path, f"{text} is read differently by different programs", f"{hint}, or quote the text")
            return None
        if "\0" in text or any("\ud800" <= char <= "\udfff" for char in text):
            self.refuse(node, path, "the text has characters that no program can take", "remove them")
            return None
        return text


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _short(text: str) -> str:
    return text if len(text) <= 40 else f"{text[:37]}..."


def _number(tag: str, text: str) -> int | float | None:
    if len(text) > 400:  # Python's own conversion refuses, or takes long, far above
        return None
    try:
        return float(_dotted(text)) if tag == FLOAT else int(text, 0)
    except ValueError:
        return None


def _dotted(text: str) -> str:
    return re.sub(r"\.(inf|nan)$", r"\1", text.lower())


def _only(file: Path, message: str, hint: str = "", line: int = 1) -> Source:
    return Source(file=file, findings=(Finding(line=line, path=(), message=message, hint=hint),))


def read_bytes(file: Path) -> bytes | Source:
    """Return the content of `file`, or a source that says why it can't be read."""
    if file.is_dir():
        return _only(file, "this is a folder", "give a file")
    if not file.exists():
        return _only(file, "there is no such file", "check the path")
    if not file.is_file():
        return _only(file, "this is not a regular file", "give a file")
    try:
        with file.open("rb") as stream:
            raw = stream.read(MAX_BYTES + 1)
    except OSError as error:
        return _only(file, f"can't be read: {error.strerror}", "check its permissions")
    if len(raw) > MAX_BYTES:
        return _only(file, f"larger than {MAX_BYTES // 1024} KiB", "a study file is a page or two")
    return raw


def read_source(file: Path) -> Source:
    """Read a YAML file whose root is a mapping; everything wrong with its text is in `findings`."""
    try:
        raw = read_bytes(file)
    except (OSError, ValueError) as error:  # a name too long for the system, or with a null character
        return _only(file, f"can't be read: {error}", "check the path")
    if isinstance(raw, Source):
        return raw
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return _only(file, "not UTF-8 text", "save the file as UTF-8", line)
    return parse_source(file, text)


def parse_source(file: Path, text: str) -> Source:
    """Like `read_source` for text already at hand; `file` names it."""
    try:
        documents = list(documents_of(text))
    except yaml.YAMLError as error:
        return _syntax(file, error)
    if not documents:
        return _only(file, "the file is empty", "see the example studies")
    builder = _Builder()
    try:
        data = builder.build(documents[0], ())
    except _TooLargeError:
        return _only(
            file, f"expands to more than {MAX_NODES} values or {MAX_DEPTH} levels", "write it without so many aliases"
        )
    if not isinstance(data, dict):
        builder.report(documents[0], (), "the file must hold a mapping of keys to values", "see the example studies")
    for extra in documents[1:]:
        builder.report(extra, (), "a second document starts here", "keep one document a file")
    return Source(
        file=file,
        data=data if isinstance(data, dict) else None,
        lines=builder.lines,
        findings=tuple(builder.findings),
        unusable=frozenset(builder.unusable),
    )


def _syntax(file: Path, error: yaml.YAMLError) -> Source:
    mark = getattr(error, "problem_mark", None) or getattr(error, "context_mark", None)
    message = getattr(error, "problem", None) or getattr(error, "reason", None) or str(error)
    hint = "indent with spaces, not tabs" if "\\t" in message else "check indentation, quotes and brackets here"
    return _only(file, f"not valid YAML: {message}", hint, mark.line + 1 if mark else 1)
