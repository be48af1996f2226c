"""Whether the counts of several SLOs speak against a capacity."""

from __future__ import annotations

import pytest

from autotune.models.curve import Point
from autotune.trial.crossing import SloPoint, contradicts


def seen(metric: str, crossed: float) -> list[SloPoint]:
    """Counts of an SLO that is crossed at a load."""
    shares = [(load, min(0.9, 0.01 * (load / crossed) ** 12)) for load in (8.0, 10.0, 12.0, 14.0)]
    return [
        (metric, Point(load=load, judged=6_000, violated=round(6_000 * share), inflation=10.0, allowed=0.01))
        for load, share in shares
    ]


BOTH = [*seen("ttft_ms.p99", 10.0), *seen("tpot_ms.p99", 13.0)]


@pytest.mark.parametrize(("load", "no"), [(7.0, True), (10.0, False), (11.5, True), (13.0, True)])
def test_too_high_is_what_one_slo_excludes_and_too_low_what_all_of_them_do(load: float, no: bool) -> None:
    assert contradicts(BOTH, load) is no


def test_nothing_measured_contradicts_nothing() -> None:
    assert not contradicts([], 10.0)
