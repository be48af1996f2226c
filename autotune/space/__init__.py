"""The space stage: a `SpaceSpec` in, candidates that pass every rule out.

`expression` reads and evaluates conditions and rules, `domain` knows what values a parameter may take, `build`
takes out what is fixed or impossible, `space` proposes candidates, `problems` checks a space before the study starts.
"""

from autotune.space.build import build_space
from autotune.space.problems import space_problems
from autotune.space.space import Parameter, RuledOut, Space

__all__ = ["Parameter", "RuledOut", "Space", "build_space", "space_problems"]
