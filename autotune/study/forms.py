"""What a study, a search space and an objective look like as files: strict pydantic models.

Where a record of `records.spec` has the same shape in the file, it is used as it is, with its bounds. The JSON Schemas
are made from these models, so descriptions here are what an editor shows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Len, MinLen
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from autotune.records.metrics import known_names
from autotune.records.spec import (
    BudgetSpec,
    EngineKind,
    HardwareSpec,
    LoadSpec,
    LogNormalLength,
    ParamValue,
    PrefixSpec,
    Probability,
    SamplerSpec,
    SimulateSpec,
)
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


def _key(*names: str) -> Callable[[Any], str | None]:
    """Tell which of `names` a mapping has; None when it has none or several, which pydantic then reports."""

    def find(value: object) -> str | None:
        found = [name for name in names if isinstance(value, dict) and name in value]
        return f"<{found[0]}>" if len(found) == 1 else None

    return find


def _text_or(tag: str) -> Callable[[Any], str]:
    return lambda value: REFERENCE if isinstance(value, str) else tag


# --- search space ---------------------------------------------------------------------------------------------------


class ParameterForm(Form):
    when: Text | None = Field(
        None, description="Expression over other parameters: where it is false, the engine's default holds."
    )
    why: str = Field("", description="Why this parameter is worth searching.")
    changes_output: bool = Field(
        False,
        description="It may change what the model says: searched only when the study says `quality: unchecked`.",
    )


class IntForm(ParameterForm):
    """A whole number from low to high, both included."""

    int_: tuple[int, int] = Field(alias="int", description="[low, high], both included.")
    log: bool = Field(False, description="Search on a logarithmic scale.")
    step: Annotated[int, Ge(1)] = Field(1, description="Distance between values, counted from low.")

    @model_validator(mode="after")
    def _consistent(self) -> IntForm:
        checks.range_is_sound(self.int_, "int", log=self.log, stepped=self.step != 1)
        return self


class FloatForm(ParameterForm):
    """A number from low to high."""

    float_: tuple[float, float] = Field(alias="float", description="[low, high], both included.")
    log: bool = Field(False, description="Search on a logarithmic scale.")
    step: Annotated[float, Gt(0)] | None = Field(None, description="Distance between values, counted from low.")

    @model_validator(mode="after")
    def _consistent(self) -> FloatForm:
        checks.range_is_sound(self.float_, "float", log=self.log, stepped=self.step is not None)
        return self


class ChoiceForm(ParameterForm):
    """One of some values."""

    choice: Annotated[list[ParamValue], MinLen(1), AfterValidator(checks.all_different)] = Field(
        description="The values to choose from."
    )


AnyParameter = Annotated[
    Annotated[IntForm, Tag("<int>")] | Annotated[FloatForm, Tag("<float>")] | Annotated[ChoiceForm, Tag("<choice>")],
    Discriminator(_key("int", "float", "choice")),
]


class SpaceForm(Form):
    """Which engine parameters are searched, and what every candidate must obey."""

    name: SpaceName | None = Field(None, description="Default: the name of the file.")
    description: str = Field("", description="One line for listings.")
    engine: EngineKind = Field(description="The engine whose parameters these are.")
    parameters: dict[ParameterName, AnyParameter] = Field(
        min_length=1, description="By the engine's own names with underscores."
    )
    derived: dict[ParameterName, Text] = Field(
        default_factory=dict, description="Engine arguments computed from the workload: name to expression."
    )
    rules: list[Text] = Field(default_factory=list, description="Expressions that hold for every candidate.")


# --- objective ------------------------------------------------------------------------------------------------------


class UniformForm(Form):
    uniform: Annotated[tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]], AfterValidator(checks.ordered)] = Field(
        description="[low, high]: whole numbers, both included."
    )


class LogNormalForm(Form):
    lognormal: Annotated[LogNormalLength, AfterValidator(checks.lognormal_is_sound)]


def _length_tag(value: object) -> str | None:
    return _key("uniform", "lognormal")(value) if isinstance(value, dict) else "<tokens>"


AnyLength = Annotated[
    Annotated[int, Ge(1), Tag("<tokens>")]
    | Annotated[UniformForm, Tag("<uniform>")]
    | Annotated[LogNormalForm, Tag("<lognormal>")],
    Discriminator(_length_tag),
]


class WorkloadForm(Form):
    """What requests look like: lengths in tokens, or a dataset."""

    shape: Text = Field("custom", description="A word for reports: chat, rag, …")
    input_tokens: AnyLength | None = Field(None, description="Length of the whole prompt, shared prefix included.")
    output_tokens: AnyLength | None = Field(None, description="Length of the answer; with a dataset, its cap.")
    prefix: PrefixSpec | None = Field(None, description="A beginning that prompts share.")
    dataset: Text | None = Field(
        None, description="JSONL of OpenAI `messages`, one request a line; relative to this file."
    )

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadForm:
        checks.workload_is_sound(
            lengths=(self.input_tokens is not None, self.output_tokens is not None), dataset=self.dataset is not None
        )
        if self.prefix is not None:
            checks.prefix_fits(self.prefix.tokens, _shortest(self.input_tokens))
        return self


def _shortest(length: AnyLength | None) -> int:
    if isinstance(length, UniformForm):
        return int(length.uniform[0])
    if isinstance(length, LogNormalForm):
        return length.lognormal.low
    return length if isinstance(length, int) else 0


class FloorForm(Form):
    min: float = Field(description="The metric must reach this.")


class CeilingForm(Form):
    max: float = Field(description="The metric must stay at or below this.")


def _slo_tag(value: object) -> str | None:
    return _key("min", "max")(value) if isinstance(value, dict) else "<limit>"


AnySlo = Annotated[
    Annotated[float, Tag("<limit>")] | Annotated[FloorForm, Tag("<min>")] | Annotated[CeilingForm, Tag("<max>")],
    Discriminator(_slo_tag),
]

AnyLoad = Annotated[
    LoadSpec,
    AfterValidator(checks.one_load),
    Field(json_schema_extra={"oneOf": [{"required": ["poisson_rps"]}, {"required": ["concurrency"]}]}),
]


class ObjectiveForm(Form):
    """What is best, under which service-level objectives, for which requests and load."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": ["maximize"]}, {"required": ["minimize"]}]})

    name: SpaceName | None = Field(None, description="Default: the name of the file.")
    description: str = Field("", description="One line for listings.")
    maximize: MetricName | None = Field(None, description="The metric to make as large as possible.")
    minimize: MetricName | None = Field(None, description="The metric to make as small as possible.")
    slos: Annotated[dict[MetricName, AnySlo], AfterValidator(checks.limits_are_sound)] = Field(
        default_factory=dict, description="Metric to its limit (≤), or {min: x} for a floor."
    )
    workload: WorkloadForm
    load: AnyLoad
    confidence: Annotated[Probability, Gt(0.5)] = Field(0.95, description="How sure a verdict must be.")

    @model_validator(mode="after")
    def _consistent(self) -> ObjectiveForm:
        checks.exactly_one("maximize", self.maximize, "minimize", self.minimize)
        return self


# --- study ----------------------------------------------------------------------------------------------------------


class EngineForm(Form):
    """Which engine, and how it is started."""

    kind: EngineKind
    command: (
        Annotated[
            Annotated[Text, AfterValidator(checks.splits), Tag(REFERENCE)]
            | Annotated[list[Text], Len(1), Tag("<list>")],
            Discriminator(_text_or("<list>")),
        ]
        | None
    ) = Field(None, description="Program with its leading arguments, as text or as a list. Default: the engine's own.")
    args: EngineArgs = Field(default_factory=dict, description="Engine arguments fixed for every trial, not tuned.")
    env: Annotated[dict[EnvName, str], AfterValidator(checks.no_secrets)] = Field(
        default_factory=dict, description='Environment of the engine; secrets by reference: "${NAME}".'
    )
    startup_timeout_s: Annotated[float, Gt(0)] = Field(900.0, description="Seconds until a launch counts as failed.")
    simulate: SimulateSpec | None = Field(None, description="The machine that a simulated engine pretends to be.")

    @model_validator(mode="after")
    def _consistent(self) -> EngineForm:
        checks.simulates(self.kind, self.simulate)
        return self


class StudyForm(Form):
    """A study: what is tuned, for what, with which budget."""

    name: Name = Field(description="Results go to runs/<name>.")
    model: Text = Field(description="Name on the hub, or a path.")
    engine: EngineForm
    hardware: Annotated[HardwareSpec, AfterValidator(checks.gpus_are_sound)] = Field(default_factory=HardwareSpec)
    incumbent: Annotated[
        Annotated[Text, Tag(REFERENCE)] | Annotated[EngineArgs, Tag(INLINE)] | Annotated[None, Tag("<none>")],
        Discriminator(lambda value: "<none>" if value is None else _text_or(INLINE)(value)),
    ] = Field(None, description="What runs today: an engine YAML, a file with a command line, or the command line.")
    search_space: Annotated[
        Annotated[Text, Tag(REFERENCE)] | Annotated[SpaceForm, Tag(INLINE)], Discriminator(_text_or(INLINE))
    ] = Field(description="A shipped name, a path relative to this file, or the space itself.")
    objective: Annotated[
        Annotated[Text, Tag(REFERENCE)] | Annotated[ObjectiveForm, Tag(INLINE)], Discriminator(_text_or(INLINE))
    ] = Field(description="A shipped name, a path relative to this file, or the objective itself.")
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    sampler: SamplerSpec = Field(default_factory=SamplerSpec)
    seed: Annotated[int, Ge(0), Field(le=2**31 - 1)] = Field(1, description="All randomness comes from it.")
    storage: Text | None = Field(None, description="An Optuna storage URL. Default: SQLite in the run directory.")
    quality: Literal["unchecked"] | None = Field(
        None, description="`unchecked` also searches parameters that may change what the model says."
    )
