"""Prepared checkpoints: what a study says of them, and which one a trial ran.

A study's *variants* are checkpoints beside its model, by name. The parameter `checkpoint` of its space chooses among
them and `base`, which is the model itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated

from annotated_types import Ge, Gt

CHECKPOINT = "checkpoint"
"""The parameter that chooses a checkpoint. No engine has an argument of this name."""

BASE = "base"
"""The value of `checkpoint` for the study's own model."""

MODEL, OUTPUT = "{model}", "{output}"
"""What a command says in the place of the model's folder, and of the folder to write."""

DEFAULT_TIMEOUT_S = 4 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantSpec:
    """One variant: `model` is a path or a name on the hub, or `command` makes it (exactly one is given).

    In the command `{model}` stands for the study's model and `{output}` for the folder to write. Files that its words
    name, and `inputs` (files or folders), count by their content: when one changes, the variant is made anew; so do
    `versions`, any names with their versions. Secrets enter by reference in `env`. `resumes`: a folder that an earlier
    attempt left unfinished is given back to the command.
    """

    name: str
    model: str | None = None
    command: tuple[str, ...] = ()
    inputs: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    needs_disk_gib: Annotated[float, Ge(0)] | None = None
    timeout_s: Annotated[float, Gt(0)] = DEFAULT_TIMEOUT_S
    resumes: bool = False

    @property
    def made_from(self) -> VariantSpec:
        """The same without what only says how its making is watched: two that are equal then are one checkpoint."""
        return replace(self, needs_disk_gib=None, timeout_s=DEFAULT_TIMEOUT_S, resumes=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """Which variant a trial ran: its name, what the engine was given (None: it could not be made), and how to make it.

    `digest` identifies what it was made from, `prepare_s` is how long making it took, whenever that was; both are None
    of one that a study only names. `waited_s` is what this trial waited for it, which no start-up or wall time holds.
    """

    name: str
    path: str | None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    digest: str | None = None
    prepare_s: float | None = None
    waited_s: float = 0.0
