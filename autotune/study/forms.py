"""What a study and a search space look like as files: strict pydantic models.

Where a record of `records.spec` has the same shape in the file, it is used as it is, with its bounds. The JSON Schemas
are made from these models, so descriptions here are what an editor shows.
"""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Len, MinLen
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from autotune.records.spec import (
    NAMED_SAMPLERS,
    BudgetSpec,
    ContainerSpec,
    EngineKind,
    FinalsSpec,
    HardwareSpec,
    ParamValue,
    PriceSpec,
    SamplerSpec,
    SimulateSpec,
)
from autotune.study import checks, price_checks
from autotune.study.form import (
    INLINE,
    REFERENCE,
    EngineArgs,
    EnvName,
    Form,
    Name,
    ParameterName,
    SpaceName,
    Text,
    none_or,
    one_key,
    text_or,
)
from autotune.study.objective_forms import ObjectiveForm
from autotune.study.variant_forms import DESCRIPTION as VARIANTS
from autotune.study.variant_forms import Variants

# --- search space ---------------------------------------------------------------------------------------------------


class ParameterForm(Form):
    when: Text | None = Field(
        None, description="Expression over other parameters: where it is false, the engine's default holds."
    )
    why: str = Field("", description="Why this parameter is worth searching.")
    changes_output: bool = Field(
        False,
        description="It may change what the model says: searched only when the objective has `quality` limits, or the "
        "study says `quality: unchecked`.",
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
    Discriminator(one_key("int", "float", "choice")),
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


# --- study ----------------------------------------------------------------------------------------------------------


class EngineForm(Form):
    """Which engine, and how it is started."""

    kind: EngineKind
    command: (
        Annotated[
            Annotated[Text, AfterValidator(checks.splits), Tag(REFERENCE)]
            | Annotated[list[Text], Len(1), Tag("<list>")],
            Discriminator(text_or("<list>")),
        ]
        | None
    ) = Field(None, description="Program with its leading arguments, as text or as a list. Default: the engine's own.")
    args: EngineArgs = Field(default_factory=dict, description="Engine arguments fixed for every trial, not tuned.")
    env: Annotated[dict[EnvName, str], AfterValidator(checks.no_secrets)] = Field(
        default_factory=dict, description='Environment of the engine; secrets by reference: "${NAME}".'
    )
    startup_timeout_s: Annotated[float, Gt(0)] = Field(900.0, description="Seconds until a launch counts as failed.")
    simulate: SimulateSpec | None = Field(None, description="The machine that a simulated engine pretends to be.")
    container: Annotated[ContainerSpec, AfterValidator(checks.container_is_sound)] | None = Field(
        None, description="The image that the engine runs in."
    )
    url: Text | None = Field(None, description="Of an endpoint: where it serves, as http://host:8000/v1.")
    api_key_env: EnvName | None = Field(None, description="Of an endpoint: the variable that holds its API key.")

    @model_validator(mode="after")
    def _consistent(self) -> EngineForm:
        checks.simulates(self.kind, self.simulate)
        checks.launches(self.kind, self.simulate, self.container)
        checks.is_reached(self.kind, self.url, self.api_key_env)
        checks.starts_nothing(self.kind, given=self.model_fields_set)
        return self


AnyIncumbent = Annotated[
    Annotated[Text, Tag(REFERENCE)] | Annotated[EngineArgs, Tag(INLINE)] | Annotated[None, Tag("<none>")],
    Discriminator(none_or(text_or(INLINE))),
]
AnySpace = Annotated[
    Annotated[Text, Tag(REFERENCE)] | Annotated[SpaceForm, Tag(INLINE)] | Annotated[None, Tag("<none>")],
    Discriminator(none_or(text_or(INLINE))),
]


class EntryForm(EngineForm):
    """One of several engines: as `engine`, with what is searched of it."""

    space: AnySpace = Field(None, description="A shipped name, a path relative to this file, or the space.")
    incumbent: AnyIncumbent = Field(None, description="What runs today of this engine.")


class StudyForm(Form):
    """A study: what is tuned, for what, with which budget."""

    model_config = ConfigDict(json_schema_extra=checks.SPACE_UNLESS_ENDPOINT)

    name: Name = Field(description="Results go to runs/<name>.")
    model: Text = Field(description="Name on the hub, or a path.")
    engine: EngineForm
    engines: dict[Name, EntryForm] | None = Field(
        None, min_length=2, description="Several by name, in the place of `engine`: which is better is then found out."
    )
    hardware: Annotated[HardwareSpec, AfterValidator(checks.gpus_are_sound)] = Field(default_factory=HardwareSpec)
    incumbent: AnyIncumbent = Field(
        None, description="What runs today: an engine YAML, a file with a command line, or the command line."
    )
    search_space: AnySpace = Field(
        None, description="A shipped name, a path relative to this file, or the space; an endpoint has none."
    )
    objective: Annotated[
        Annotated[Text, Tag(REFERENCE)] | Annotated[ObjectiveForm, Tag(INLINE)], Discriminator(text_or(INLINE))
    ] = Field(description="A shipped name, a path relative to this file, or the objective itself.")
    budget: BudgetSpec = Field(default_factory=BudgetSpec)
    sampler: Annotated[
        Annotated[Annotated[Text, AfterValidator(checks.sampler_called)], Tag(REFERENCE)]
        | Annotated[Annotated[SamplerSpec, AfterValidator(checks.sampler_is_sound)], Tag(INLINE)],
        Discriminator(text_or(INLINE)),
    ] = Field(
        default_factory=SamplerSpec,
        description=f"{', '.join(NAMED_SAMPLERS)}; or any of Optuna's: `module:Class`, `optunahub:package:Class`.",
    )
    seed: Annotated[int, Ge(0), Field(le=2**31 - 1)] = Field(1, description="All randomness comes from it.")
    storage: Text | None = Field(None, description="An Optuna storage URL. Default: SQLite in the run directory.")
    quality: Literal["unchecked"] | None = Field(
        None, description="`unchecked` also searches parameters that may change what the model says."
    )
    price: Annotated[PriceSpec, AfterValidator(price_checks.price_is_sound)] | None = Field(
        None, description="What machines or tokens cost, in US dollars: for cost metrics and reports."
    )
    finals: Annotated[
        Annotated[Literal[False, "off"], Tag("<none>")] | Annotated[FinalsSpec, Tag(INLINE)],
        Discriminator(lambda value: INLINE if isinstance(value, dict | FinalsSpec) else "<none>"),
    ] = Field(
        default_factory=FinalsSpec,
        description="Fresh launches of the best few and a soak, on top of the budget's trials; false for none.",
    )
    variants: Variants = Field(default_factory=dict, description=VARIANTS)
    variants_dir: Text | None = Field(
        None, description="Where prepared checkpoints are kept. Default: autotune/variants in the user's cache."
    )

    @model_validator(mode="after")
    def _consistent(self) -> StudyForm:
        checks.measured_as_it_is(self.engine.kind, given=self.model_fields_set)
        price_checks.price_fits(self.engine.kind, self.price)
        if isinstance(self.objective, ObjectiveForm):
            checks.answers_sessions(self.engine.kind, self.engine.simulate, self.objective.workload.sessions)
            price_checks.can_be_known(self.engine.kind, self.price, self.objective)
        return self
