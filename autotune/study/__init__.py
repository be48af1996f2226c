"""The study stage: a YAML file in, a `StudySpec` out, or every problem of the file at once.

`tree` reads YAML with lines, `forms` says what files look like, `problems` puts what is wrong into words, `shape` turns
forms into records, `reader` ties them together.
"""

from autotune.study.dump import dump_study
from autotune.study.engines_checks import uneven
from autotune.study.reader import load_objective, load_study
from autotune.study.schema import objective_schema, space_schema, study_schema
from autotune.study.shipped import shipped_description, shipped_objectives, shipped_spaces

__all__ = [
    "dump_study",
    "load_objective",
    "load_study",
    "objective_schema",
    "shipped_description",
    "shipped_objectives",
    "shipped_spaces",
    "space_schema",
    "study_schema",
    "uneven",
]
