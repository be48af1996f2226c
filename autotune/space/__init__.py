"""The space stage: a `SpaceSpec` in, candidates that pass every rule out.

`expression` reads and evaluates conditions and rules, `domain` knows what values a parameter may take, `build`
takes out what is fixed or impossible, `space` proposes candidates, `engines` does so for several engines at once,
`problems` checks a space before the study starts.
"""

from autotune.space.build import build_space
from autotune.space.engines import EngineSpaces, build_spaces
from autotune.space.problems import space_problems
from autotune.space.space import Parameter, RuledOut, Space

__all__ = ["EngineSpaces", "Parameter", "RuledOut", "Space", "build_space", "build_spaces", "space_problems"]
