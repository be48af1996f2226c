"""Measure: the requests of a level come in, a `Measurement` goes out: numbers with intervals, and what to distrust.

`samples` picks what counts, `estimates` is the statistics, `throughput` the rates, `violations` the counts that SLOs
are judged by, `audit` the doubts. Formulas and clocks of every metric: docs/vocabulary.md.
"""

from autotune.measure.level import measure

__all__ = ["measure"]
