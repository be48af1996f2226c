"""What every form of a file is made of: the strict base, the kinds of text, and how alternatives are told apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from annotated_types import MinLen
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints

from autotune.records.metrics import known_names
from autotune.study import checks

# Tags of unions stand in pydantic's error locations; the brackets keep them apart from keys of the file.
REFERENCE, INLINE = "<reference>", "<inline>"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,99}$")]
SpaceName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]{0,99}$")]
Text = Annotated[str, MinLen(1)]
ParameterName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z][A-Za-z0-9_]*(\.[A-Za-z][A-Za-z0-9_]*)*$")]
MetricName = Annotated[str, AfterValidator(checks.known_metric), Field(examples=known_names())]
EngineArgs = Annotated[dict[str, Any], AfterValidator(checks.no_nulls)]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]


class Form(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def one_key(*names: str) -> Callable[[Any], str | None]:
    """Tell which of `names` a mapping has; None when it has none or several, which pydantic then reports."""

    def find(value: object) -> str | None:
        found = [name for name in names if isinstance(value, dict) and name in value]
        return f"<{found[0]}>" if len(found) == 1 else None

    return find


def none_or(otherwise: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
    """Tell nothing from what `otherwise` tells apart."""
    return lambda value: "<none>" if value is None else otherwise(value)


def text_or(tag: str) -> Callable[[Any], str]:
    """Tell text, a reference, from anything else, which is `tag`."""
    return lambda value: REFERENCE if isinstance(value, str) else tag
