"""The study stage: a YAML file in, a `StudySpec` out, or every problem of the file at once."""
