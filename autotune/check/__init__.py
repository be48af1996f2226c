"""`autotune check`: what a study would do, without a launch. `gather` finds it out, `words` says it."""

from autotune.check.gather import Report, check_study
from autotune.check.words import lines

__all__ = ["Report", "check_study", "lines"]
