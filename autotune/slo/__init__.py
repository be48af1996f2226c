"""SLO: measurements of one launch come in, a `Verdict` goes out; and the guard that ends an overloaded level early.

`sequential` is the test on violation counts, `judge` rules on every kind of metric, `guard` watches a level while it
runs. Why tests for independent requests are wrong here, and how often ours errs: docs/measurement.md.
"""

from autotune.slo.guard import OverloadGuard, Progress, overload_guard
from autotune.slo.judge import constraint_value, judge
from autotune.slo.sequential import requests_needed_to_pass
from autotune.slo.settling import mean_tokens, samples_expected, unsettled

__all__ = [
    "OverloadGuard",
    "Progress",
    "constraint_value",
    "judge",
    "mean_tokens",
    "overload_guard",
    "requests_needed_to_pass",
    "samples_expected",
    "unsettled",
]
