"""When to stop: what further launches would bring is less than what they take, and has been for a while."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_LAUNCHES = 12  # before so many, what is believed rests on too little to be relied on
IN_A_ROW = 4  # one choice may look bad by chance of what was drawn
WORTH_RATIO = 0.002
"""A launch that is expected to raise the best by less than this is not worth its minutes: ten of them would bring less
than what two equal launches differ by."""
MORE = 5  # launches that the reason speaks of


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The gain in ln(objective) that was expected of a launch when it was chosen."""

    number: int
    gain: float


def why_settled(gains: Sequence[Expectation], *, launched: int) -> str | None:
    """Return why the search may end and what going on would likely bring; None while it is worth going on."""
    last = [each.gain for each in sorted(gains, key=lambda each: each.number)[-IN_A_ROW:]]
    if launched < LEAST_LAUNCHES or len(last) < IN_A_ROW or max(last) >= WORTH_RATIO:
        return None
    one, more = _percent(last[-1]), _percent(MORE * last[-1])
    return f"settled: another launch would likely gain {one}, {MORE} more at most {more}, over the best so far"


def _percent(log_gain: float) -> str:
    ratio = math.expm1(log_gain)
    return f"{ratio:.1%}" if ratio >= 0.0005 else "less than 0.1%"
