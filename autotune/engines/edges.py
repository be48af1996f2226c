"""Lines of an engine's log that name an edge of what fits, as numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

GIB = 2**30

Figure = tuple[re.Pattern[str], float, Callable[[Sequence[float]], float]]
"""Pattern, factor to the name's unit, and which of several counts (of ranks the tightest)."""


def last(values: Sequence[float]) -> float:
    """What an engine says again replaces what it said before."""
    return values[-1]


def figures(table: Mapping[str, Figure], log_text: str) -> dict[str, float]:
    """Figures that the log names, by name; what it doesn't tell is absent."""
    found: dict[str, float] = {}
    for name, (pattern, factor, which) in table.items():
        texts = ["".join(match.groups("")).replace(",", "") for match in pattern.finditer(log_text)]
        if texts:
            found[name] = which([float(text) * factor for text in texts])
    return found
