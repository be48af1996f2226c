"""What an objective looks like as a file: metric and SLOs, the requests and how they arrive."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Gt, Lt
from pydantic import AfterValidator, ConfigDict, Discriminator, Field, Tag, model_validator

from autotune.records.quality import QualitySpec
from autotune.records.spec import (
    BurstArrivals,
    CapacitySpec,
    GammaArrivals,
    LogNormalLength,
    PrefixSpec,
    Probability,
    RampArrivals,
    TraceArrivals,
)
from autotune.study import checks, load_checks
from autotune.study.form import INLINE, REFERENCE, Form, MetricName, SpaceName, Text, one_key, text_or


class UniformForm(Form):
    uniform: Annotated[tuple[Annotated[int, Ge(1)], Annotated[int, Ge(1)]], AfterValidator(checks.ordered)] = Field(
        description="[low, high]: whole numbers, both included."
    )


class LogNormalForm(Form):
    lognormal: Annotated[LogNormalLength, AfterValidator(load_checks.lognormal_is_sound)]


def _length_tag(value: object) -> str | None:
    return one_key("uniform", "lognormal")(value) if isinstance(value, dict) else "<tokens>"


AnyLength = Annotated[
    Annotated[int, Ge(1), Tag("<tokens>")]
    | Annotated[UniformForm, Tag("<uniform>")]
    | Annotated[LogNormalForm, Tag("<lognormal>")],
    Discriminator(_length_tag),
]


class SessionForm(Form):
    """Conversations of several turns; each turn's prompt holds what was said before."""

    turns: AnyLength = Field(description="Turns of a conversation; with a dataset, at most so many.")
    think_s: Annotated[float, Ge(0)] = Field(
        0.0, description="Mean seconds (exponential) between an answer's end and the next turn."
    )


class WorkloadForm(Form):
    """What requests look like: lengths in tokens, a file of lengths, or a dataset."""

    shape: Text = Field("custom", description="A word for reports: chat, rag, …")
    input_tokens: AnyLength | None = Field(
        None, description="Length of the whole prompt, shared prefix included; with sessions, of each turn's new text."
    )
    output_tokens: AnyLength | None = Field(None, description="Length of the answer; with a dataset, its cap.")
    correlation: Annotated[float, Gt(-1), Lt(1)] = Field(
        0.0, description="Rank correlation (Spearman) of prompt and answer lengths."
    )
    lengths: Text | None = Field(
        None, description="JSONL or CSV of (prompt, answer) lengths in tokens; relative to this file."
    )
    prefix: PrefixSpec | None = Field(None, description="A beginning that prompts share.")
    sessions: SessionForm | None = None
    text: Literal["random", "natural"] = Field(
        "random", description="Random token ids, or English text where content matters (speculation, experts)."
    )
    dataset: Text | None = Field(
        None, description="OpenAI `messages` (JSONL), ShareGPT or plain prompts; relative to this file."
    )

    @model_validator(mode="after")
    def _consistent(self) -> WorkloadForm:
        load_checks.workload_is_sound(self)
        if self.prefix is not None and self.input_tokens is not None and self.sessions is None:
            load_checks.prefix_fits(self.prefix.tokens, _shortest(self.input_tokens))
        return self


def _shortest(length: AnyLength) -> int:
    if isinstance(length, UniformForm):
        return int(length.uniform[0])
    return length.lognormal.low if isinstance(length, LogNormalForm) else length


class LoadForm(Form):
    """How requests arrive: exactly one kind, and how long a level of it lasts."""

    model_config = ConfigDict(json_schema_extra={"oneOf": [{"required": [kind]} for kind in load_checks.LOAD_KINDS]})

    poisson_rps: Annotated[float, Gt(0)] | None = Field(None, description="Requests a second, at random times.")
    constant_rps: Annotated[float, Gt(0)] | None = Field(None, description="Requests a second, evenly spaced.")
    gamma: GammaArrivals | None = None
    bursts: Annotated[BurstArrivals, AfterValidator(load_checks.bursts_are_sound)] | None = None
    ramp: RampArrivals | None = None
    trace: TraceArrivals | None = None
    concurrency: Annotated[int, Ge(1)] | None = Field(
        None, description="Closed loop: so many clients, each sending its next request when its last was answered."
    )
    capacity: (
        Annotated[
            Annotated[Literal["rps", "concurrency"], Tag(REFERENCE)]
            | Annotated[CapacitySpec, AfterValidator(load_checks.capacity_is_sound), Tag(INLINE)],
            Discriminator(text_or(INLINE)),
        ]
        | None
    ) = Field(None, description="Search the highest load at which every SLO holds: rps, concurrency, or a mapping.")
    duration_s: Annotated[float, Gt(0)] = Field(60.0, description="Seconds that a level measures.")
    warmup_s: Annotated[float, Ge(0)] = Field(5.0, description="Seconds of load before it measures.")
    max_requests: Annotated[int, Ge(1)] | None = Field(None, description="A level ends after so many requests.")
    repeats: Annotated[int, Ge(1)] = Field(1, description="Levels run in one launch.")

    @model_validator(mode="after")
    def _one_kind(self) -> LoadForm:
        load_checks.one_load({kind: getattr(self, kind) for kind in load_checks.LOAD_KINDS})
        return self

    @property
    def capacity_spec(self) -> CapacitySpec | None:
        """The capacity search, its short form written out."""
        return CapacitySpec(of=self.capacity) if isinstance(self.capacity, str) else self.capacity


class FloorForm(Form):
    min: float = Field(description="The metric must reach this.")


class CeilingForm(Form):
    max: float = Field(description="The metric must stay at or below this.")


def _slo_tag(value: object) -> str | None:
    return one_key("min", "max")(value) if isinstance(value, dict) else "<limit>"


AnySlo = Annotated[
    Annotated[float, Tag("<limit>")] | Annotated[FloorForm, Tag("<min>")] | Annotated[CeilingForm, Tag("<max>")],
    Discriminator(_slo_tag),
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
    workload: WorkloadForm = Field(
        default_factory=WorkloadForm, description="What requests are like; a trace brings its own."
    )
    load: LoadForm
    confidence: Annotated[Probability, Gt(0.5)] = Field(0.95, description="How sure a verdict must be.")
    quality: QualitySpec | None = Field(
        None, description="How far answers may be from the reference's where parameters may change them; {}: defaults."
    )

    @model_validator(mode="after")
    def _consistent(self) -> ObjectiveForm:
        checks.exactly_one("maximize", self.maximize, "minimize", self.minimize)
        load_checks.goes_together(self)
        return self
