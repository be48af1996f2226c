"""The seed tree of a level: one independent generator for each purpose and index, all from the level's seed."""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy.random import Generator


class Stream(IntEnum):
    """A branch of the tree. The numbers are part of what a seed means: never renumber."""

    ARRIVALS = 0
    REQUEST = 1
    PREFIX = 2
    ORDER = 3
    SESSION = 4
    THINKING = 5
    BLOCK = 6


def generator(seed: int, stream: Stream, *index: int) -> Generator:
    """The generator of leaf `index` on branch `stream` under `seed`; the same leaf gives the same numbers always."""
    import numpy as np  # noqa: PLC0415 - heavy; the load client imports this package without it

    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(stream, *(index or (0,)))))
