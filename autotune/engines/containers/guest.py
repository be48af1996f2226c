"""What an engine tells of itself that containers need to know."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from autotune.records.spec import Args

FOLDER = "/autotune"
"""Where what is ours stands inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """What a guest is told of one launch: where it listens, its trial's folder as it sees it, and its GPUs."""

    args: Args
    host: str
    port: int
    folder: str
    gpus: Sequence[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Guest:
    """What containers need to know of a kind of engine.

    `program` is the study's command or the engine's own, `command` the whole of what serves. `files` are written into
    the trial's folder; those that `mounts` names stand read-only in Launch.folder. `children` by their paths inside are
    what may be asked there. `env` is what the engine gets besides the study's own. `by_bash`: the image sets library
    paths in the file that BASH_ENV names, which only bash reads. `api_key` is what requests must give, by its
    environment.
    """

    program: tuple[str, ...]
    command: Callable[[Launch], Sequence[str]]
    model_name: Callable[[Args], str]
    files: Callable[[Launch], Mapping[str, str]] = lambda _: {}
    mounts: tuple[str, ...] = ()
    children: Mapping[str, Path] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    by_bash: bool = False
    api_key: Callable[[Mapping[str, str]], str | None] = lambda _: None
    stack_bytes: int | None = None
    health_path: str = "/health"
    ask_versions: str
    unknown_versions: Mapping[str, str | None]
