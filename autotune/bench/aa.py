"""A/A: equal levels against one another, so that one knows how far two measurements differ when nothing has changed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from autotune.bench.record import Noise, Pair
from autotune.measure import noise
from autotune.measure.estimates import student_t
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import Estimate, Measurement

COMPARED = ("output_tok_per_s", "ttft_ms.mean", "tpot_ms.mean", "e2e_ms.mean")


def noise_of(measurements: Sequence[Measurement], objective: ObjectiveSpec) -> tuple[Noise, ...]:
    """Return how far the levels of one launch differ in the objective's metrics and the usual ones.

    Levels 1 and 2, 3 and 4, … are pairs; an odd one out counts for the noise alone. A metric that isn't above 0 in
    every level is left out: it has no relative noise.
    """
    wanted = dict.fromkeys((objective.metric, *(slo.metric for slo in objective.slos), *COMPARED))
    found = ((metric, [m.values[metric] for m in measurements if metric in m.values]) for metric in wanted)
    return tuple(
        _noise(metric, levels, objective.confidence)
        for metric, levels in found
        if len(levels) == len(measurements) > 1 and all(level.value > 0 for level in levels)
    )


def _noise(metric: str, levels: Sequence[Estimate], confidence: float) -> Noise:
    within = noise.floor([levels]).within or 0.0
    bound = student_t(confidence, len(levels) - 1) * within * math.sqrt(2)
    return Noise(metric=metric, within=within, tie_ratio=math.exp(bound), pairs=tuple(_pairs(levels)))


def _pairs(levels: Sequence[Estimate]) -> Iterator[Pair]:
    for index in range(0, len(levels) - 1, 2):
        first, second = levels[index].value, levels[index + 1].value
        yield Pair(levels=(index + 1, index + 2), first=first, second=second, ratio=second / first)
