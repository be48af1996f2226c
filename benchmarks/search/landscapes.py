"""The landscapes: study files as a user would write them, and what their machines are really like.

Each file is searched on several machines. On `same` every time is the simulator's own, the prior's answer key. On
`constants` each constant is off by 30 to 60 %. On `structural` they are too, and there are effects beside them that no
constant makes up for. `real` is no simulation: the table of a real vLLM on the CPU is replayed (`real.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path

from autotune.records.spec import StudySpec
from autotune.space import Space, build_space
from autotune.study import load_study

FOLDER = Path(__file__).parent / "landscapes"


class Machine(StrEnum):
    SAME = "same"
    CONSTANTS = "constants"
    STRUCTURAL = "structural"
    REAL = "real"


HELD_OUT = ("code-8b-a100", "long-8b-l40s")
"""Looked at only once a search is done: nothing may be tuned on them."""

REAL = "vllm-cpu@real"
NAMES = ("chat-8b-h100", "rag-70b-4xh100", "reasoning-32b-h200", "batch-32b-h100", *HELD_OUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Landscape:
    """A study, its space, and the machine it runs on; called `name@machine`."""

    spec: StudySpec
    space: Space
    machine: Machine

    @property
    def name(self) -> str:
        """What tables and the command line call it."""
        return f"{self.spec.name}@{self.machine}"

    @property
    def held_out(self) -> bool:
        """Whether nothing may be tuned on it."""
        return self.spec.name in HELD_OUT

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs that the engine is given."""
        return tuple(str(gpu) for gpu in self.spec.hardware.gpus or ())


@cache
def landscape(name: str) -> Landscape:
    """Return the landscape called `name@machine`. Raises ValueError for one that isn't there."""
    study, _, machine = name.partition("@")
    if study not in NAMES and name != REAL:
        raise ValueError(f"no landscape called {study!r}; there are {', '.join(NAMES)} and {REAL}")
    spec = load_study(FOLDER / f"{study}.yaml")
    return Landscape(
        spec=spec, space=build_space(spec, gpus=len(spec.hardware.gpus or ())), machine=Machine(machine or "structural")
    )
