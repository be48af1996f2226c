"""Measure: the requests of a level come in, a `Measurement` goes out: numbers with intervals, and what to distrust.

`level` is the whole of it. `samples` picks what counts, `estimates` is the statistics, `throughput` the rates,
`violations` the counts that SLOs are judged by, `warmup` where the window begins, `noise` what launches differ by.
`counters` is telemetry in figures, `audit` doubts the level by itself and `crosscheck` by telemetry; `diagnosis` says
why an SLO was missed, and `levers` which parameters move that. Formulas and clocks: docs/vocabulary.md.
"""

from autotune.measure import noise
from autotune.measure.level import measure
from autotune.measure.warmup import warm_from_s, warmed_up

__all__ = ["measure", "noise", "warm_from_s", "warmed_up"]
