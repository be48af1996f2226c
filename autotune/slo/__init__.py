"""SLO: measurements of one launch come in, a `Verdict` goes out; and what ends a level early.

`sequential` is the test on violation counts, `judge` rules on every kind of metric; while a level runs `guard` watches
for overload and `stopping` for a verdict that is settled. Why tests for independent requests are
wrong here, and how often ours errs: docs/measurement.md.
"""

from autotune.slo.evidence import weights_of
from autotune.slo.guard import OverloadGuard, Progress, overload_guard
from autotune.slo.judge import NOT_MEASURED, constraint_value, judge
from autotune.slo.sequential import requests_needed_to_pass
from autotune.slo.settling import mean_tokens, samples_expected, unsettled
from autotune.slo.stopping import Rule, Standing, Stopper, settled_by

__all__ = [
    "NOT_MEASURED",
    "OverloadGuard",
    "Progress",
    "Rule",
    "Standing",
    "Stopper",
    "constraint_value",
    "judge",
    "mean_tokens",
    "overload_guard",
    "requests_needed_to_pass",
    "samples_expected",
    "settled_by",
    "unsettled",
    "weights_of",
]
