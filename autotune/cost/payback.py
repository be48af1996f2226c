"""After how much traffic the gain of a study has paid for the study."""

from __future__ import annotations

import math

from autotune.cost.serving import MILLION


def payback_tok(study_usd: float, before_usd_per_million: float, after_usd_per_million: float) -> float:
    """Return the tokens after which the lower price has paid back `study_usd`; infinite when the price didn't fall."""
    saved = before_usd_per_million - after_usd_per_million
    return study_usd / saved * MILLION if saved > 0 else math.inf
