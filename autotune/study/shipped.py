"""Search spaces and objectives that come with autotune, by name: the path below their folder without `.yaml`."""

from __future__ import annotations

from pathlib import Path

import autotune
from autotune.study.tree import read_source


def shipped_spaces() -> dict[str, Path]:
    """Return every shipped search space: name, such as `vllm/default`, to file."""
    return _named("search_spaces")


def shipped_objectives() -> dict[str, Path]:
    """Return every shipped objective: name, such as `chat`, to file."""
    return _named("objectives")


def shipped_description(file: Path) -> str:
    """Return the one-line description that a shipped file gives of itself, empty when it gives none."""
    data = read_source(file).data or {}
    return str(data.get("description", "")).strip()


def _named(kind: str) -> dict[str, Path]:
    package = Path(autotune.__file__).parent
    installed = package / "shipped" / kind  # in a wheel; a checkout keeps them at its top
    folder = installed if installed.is_dir() else package.parent / kind
    return {file.relative_to(folder).with_suffix("").as_posix(): file for file in sorted(folder.rglob("*.yaml"))}
