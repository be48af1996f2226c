"""`autotune compare`: finished runs come in, who is better at what goes out, or why they can't be compared.

`gather` reads a run, `unlike` says what keeps two from being compared, `deciding` tells differences from noise, `show`
puts it into words.
"""

from autotune.compare.gather import compare_runs
from autotune.compare.record import Comparison
from autotune.compare.show import render
from autotune.compare.unlike import ALLOWABLE

__all__ = ["ALLOWABLE", "Comparison", "compare_runs", "render"]
