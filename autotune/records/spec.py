"""What the user asks for: a study file once it is read, its references resolved and its problems reported.

Frozen standard dataclasses. Bounds that a field alone can tell stand in its annotation (`annotated_types`), so that
the reader in `study/` checks them and the JSON Schema shows them; what takes several fields is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

ParamValue = bool | int | float | str
"""A value of one engine parameter. `None` never appears: an engine default is expressed by leaving the name out."""

Args = Mapping[str, Any]
"""Engine arguments by the engine's own names with underscores (`max_num_seqs`); nested mappings for JSON flags."""

Probability = Annotated[float, Gt(0), Lt(1)]


class EngineKind(StrEnum):
    VLLM = "vllm"
    TENSORRT_LLM = "tensorrt_llm"
    SIMULATED = "simulated"
    ENDPOINT = "endpoint"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSpec:
    """The machine that a simulated engine pretends to be."""

    gpu: str = "h100"
    face: Literal["virtual", "server"] = "virtual"
    time_scale: Annotated[float, Gt(0)] = 1.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine, and how it is started. `args` are fixed for every trial; secrets enter by reference in `env`."""

    kind: EngineKind
    command: tuple[str, ...] = ()
    args: Args = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    startup_timeout_s: Annotated[float, Gt(0)] = 900.0
    simulate: SimulateSpec | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """GPU indices, UUIDs or MIG ids given to the engine; `None`: what CUDA_VISIBLE_DEVICES, else NVML, shows."""

    gpus: tuple[int | str, ...] | None = None


# --- search space ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class IntRange:
    low: int
    high: int
    log: bool = False
    step: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class FloatRange:
    low: float
    high: float
    log: bool = False
    step: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    values: tuple[ParamValue, ...]


Domain = IntRange | FloatRange | Choice


@dataclass(frozen=True, slots=True, kw_only=True)
class ParameterSpec:
    """One engine parameter. `when` is an expression over other parameters: inactive means the engine's default holds.

    `changes_output` marks parameters that may alter what the model says (quantisation, KV dtype, speculation): they are
    searched only with a quality check or when the study says `quality: unchecked`.
    """

    name: str
    domain: Domain
    when: str | None = None
    why: str = ""
    changes_output: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceSpec:
    """Parameters, values derived from the workload (`derived`: name -> expression) and rules every candidate obeys."""

    name: str
    engine: EngineKind
    parameters: tuple[ParameterSpec, ...]
    derived: Mapping[str, str] = field(default_factory=dict)
    rules: tuple[str, ...] = ()


# --- objective ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedLength:
    tokens: Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UniformLength:
    """Whole numbers low..high, both included."""

    low: Annotated[int, Ge(1)]
    high: Annotated[int, Ge(1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LogNormalLength:
    """exp(N(ln median, sigma)), rounded, cut to low..high."""

    median: Annotated[float, Gt(0)]
    sigma: Annotated[float, Gt(0)]
    low: Annotated[int, Ge(1)] = 1
    high: Annotated[int, Ge(1)]


Length = FixedLength | UniformLength | LogNormalLength


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixSpec:
    """The first `tokens` of every prompt are shared by the requests of one of `groups` equally likely groups."""

    tokens: Annotated[int, Ge(1)]
    groups: Annotated[int, Ge(1)] = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """Synthetic lengths, or a dataset (JSONL of OpenAI `messages`, path as given or made absolute by the reader).

    `input_tokens` counts the whole prompt, its shared prefix included. With a dataset, `output_tokens` caps
    (`max_tokens`) unless the row sets its own.
    """

    shape: str = "custom"
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    prefix: PrefixSpec | None = None
    dataset: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """How requests arrive; exactly one of `poisson_rps` (open loop) and `concurrency` (closed loop) is set.

    A level measures for `duration_s` after warm-up, or until `max_requests` were sent, whichever comes first;
    `repeats` levels are run in one launch.
    """

    poisson_rps: Annotated[float, Gt(0)] | None = None
    concurrency: Annotated[int, Ge(1)] | None = None
    duration_s: Annotated[float, Gt(0)] = 60.0
    warmup_s: Annotated[float, Ge(0)] = 5.0
    max_requests: Annotated[int, Ge(1)] | None = None
    repeats: Annotated[int, Ge(1)] = 1


class Bound(StrEnum):
    MAX = "max"  # the metric must stay at or below the limit
    MIN = "min"  # the metric must reach the limit


@dataclass(frozen=True, slots=True, kw_only=True)
class Slo:
    """A service-level objective on one metric of `records.metrics`, in that metric's unit."""

    metric: str
    limit: float
    bound: Bound = Bound.MAX


class Direction(StrEnum):
    MAXIMIZE = "maximize"
    MINIMIZE = "minimize"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveSpec:
    name: str
    metric: str
    direction: Direction
    slos: tuple[Slo, ...]
    workload: WorkloadSpec
    load: LoadSpec
    confidence: Annotated[float, Gt(0.5), Lt(1)] = 0.95


# --- study ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """`trials` counts launches, the reference included; `hours` is wall time of the whole study."""

    trials: Annotated[int, Ge(1)] = 40
    hours: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSpec:
    kind: Literal["auto", "tpe", "random", "qmc", "nsga2", "gp", "grid"] = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """A resolved study. `incumbent`: the arguments of what runs today, imported from YAML or a command line."""

    name: str
    model: str
    engine: EngineSpec
    search_space: SpaceSpec
    objective: ObjectiveSpec
    hardware: HardwareSpec = field(default_factory=HardwareSpec)
    incumbent: Args | None = None
    budget: BudgetSpec = field(default_factory=BudgetSpec)
    sampler: SamplerSpec = field(default_factory=SamplerSpec)
    seed: Annotated[int, Ge(0), Le(2**31 - 1)] = 1
    storage: str | None = None
    quality: Literal["unchecked"] | None = None

    @property
    def simulated(self) -> bool:
        """True when no real engine runs: such a study is never evidence."""
        return self.engine.kind is EngineKind.SIMULATED
