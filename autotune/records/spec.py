"""What the user asks for: a study file once it is read, its references resolved and its problems reported.

Frozen standard dataclasses. Bounds that a field alone can tell stand in its annotation (`annotated_types`), so that
the reader in `study/` checks them and the JSON Schema shows them; what takes several fields is checked there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt, Le, Lt

from autotune.records.quality import QualitySpec
from autotune.records.variants import VariantSpec

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
    TRITON = "triton"


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulateSpec:
    """The machine that a simulated engine pretends to be."""

    gpu: str = "h100"
    face: Literal["virtual", "server"] = "virtual"
    time_scale: Annotated[float, Gt(0)] = 1.0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ContainerSpec:
    """The image that the engine runs in. `mounts` as `host:container[:ro]`; `options` go to the runtime's `run` as they
    are, before the image."""

    runtime: Literal["docker", "podman"] = "docker"
    image: str
    mounts: tuple[str, ...] = ()
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """Which engine, and how it is started. `args` are fixed for every trial; secrets enter by reference in `env`.

    With a `container`, `command` is what runs inside it (default: the engine's own).
    An `endpoint` runs already: it has an `url`, and `api_key_env` names the variable that holds its key.
    `name` is what it is called among the engines of a study; None of the only one.
    """

    kind: EngineKind
    command: tuple[str, ...] = ()
    args: Args = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    startup_timeout_s: Annotated[float, Gt(0)] = 900.0
    simulate: SimulateSpec | None = None
    container: ContainerSpec | None = None
    url: str | None = None
    api_key_env: str | None = None
    name: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class HardwareSpec:
    """GPU indices, UUIDs or MIG ids given to the engine; `None`: what CUDA_VISIBLE_DEVICES, else NVML, shows.

    `when_busy`: what a study does while another study of this machine holds one of its GPUs.
    """

    gpus: tuple[int | str, ...] | None = None
    when_busy: Literal["refuse", "wait"] = "refuse"


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
    searched only when the objective has `quality` limits, or the study says `quality: unchecked`.
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

    @property
    def low(self) -> int:
        """The least it can be, as of every length."""
        return self.tokens

    @property
    def high(self) -> int:
        """The most it can be, as of every length."""
        return self.tokens


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
class SessionSpec:
    """Conversations of several turns: each turn's prompt is the one before it, its answer and new text of
    `WorkloadSpec.input_tokens`; it is sent `think_s` (exponential, mean) after the answer before it ended.

    A shared prefix stands before the first turn's text, not inside it. A dataset's conversations have at most `turns`.
    """

    turns: Length
    think_s: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSpec:
    """What requests are like: synthetic lengths, pairs of lengths from a file, or a dataset of texts.

    `input_tokens` counts the whole prompt, its shared prefix included. `correlation` is the rank correlation of prompt
    and answer lengths. `lengths` is a file of (prompt, answer) pairs in tokens. `text`: whether synthetic prompts are
    random token ids or natural text, where content matters (speculation, routing of experts).
    With a dataset, `output_tokens` caps (`max_tokens`) unless the row sets its own. Paths are absolute. A trace brings
    its own requests: beside one, only `shape` and `text` are set.
    """

    shape: str = "custom"
    input_tokens: Length | None = None
    output_tokens: Length | None = None
    correlation: Annotated[float, Gt(-1), Lt(1)] = 0.0
    lengths: str | None = None
    prefix: PrefixSpec | None = None
    sessions: SessionSpec | None = None
    text: Literal["random", "natural"] = "random"
    dataset: str | None = None

    @property
    def longest_tokens(self) -> tuple[int, int] | None:
        """Prompt and answer of the longest request; of a session, its last turn's. None where only a file tells."""
        if self.input_tokens is None or self.output_tokens is None or self.dataset is not None:
            return None
        return self.last_turn(self.input_tokens.high, self.output_tokens.high)

    def last_turn(self, prompt: int, answer: int) -> tuple[int, int]:
        """Prompt and answer of the last turn of a longest session whose turns each have so many tokens."""
        if self.sessions is None:
            return prompt, answer
        before = (self.prefix.tokens if self.prefix else 0) + (self.sessions.turns.high - 1) * (prompt + answer)
        return before + prompt, answer


@dataclass(frozen=True, slots=True, kw_only=True)
class GammaArrivals:
    """Gaps of a gamma distribution: `burstiness` is its squared coefficient of variation, 1 being Poisson."""

    rps: Annotated[float, Gt(0)]
    burstiness: Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class BurstArrivals:
    """Poisson at `rps` on average, `factor` times as fast for `burst_s` of every `every_s` as in between."""

    rps: Annotated[float, Gt(0)]
    factor: Annotated[float, Gt(1)]
    burst_s: Annotated[float, Gt(0)]
    every_s: Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class RampArrivals:
    """Poisson at a rate that goes from `from_rps` to `to_rps` in a straight line over the window."""

    from_rps: Annotated[float, Gt(0)]
    to_rps: Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceArrivals:
    """Recorded requests with times and lengths (Mooncake's JSONL, Azure's CSV). `speed` > 1 replays faster; a trace
    shorter than the level is repeated when `repeat` says so; the level takes it from `start_s` of the trace on."""

    file: str
    speed: Annotated[float, Gt(0)] = 1.0
    repeat: bool = False
    start_s: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CapacitySpec:
    """Search the highest offered load at which every SLO holds: requests a second (Poisson), or clients of a closed
    loop. `low` and `high` bound the search; `load_s` is the most time under load that one launch may take for it."""

    of: Literal["rps", "concurrency"] = "rps"
    low: Annotated[float, Gt(0)] | None = None
    high: Annotated[float, Gt(0)] | None = None
    load_s: Annotated[float, Gt(0)] = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadSpec:
    """How requests arrive: exactly one of the fields before `duration_s` is set.

    `concurrency` is a closed loop, `capacity` a search over levels, the rest open loops. A level measures for
    `duration_s` after warm-up, or until `max_requests` were sent, whichever comes first, or less where its verdict is
    settled before; `repeats` levels are run in one launch. With `capacity` these describe one level of the search.
    """

    poisson_rps: Annotated[float, Gt(0)] | None = None
    constant_rps: Annotated[float, Gt(0)] | None = None
    gamma: GammaArrivals | None = None
    bursts: BurstArrivals | None = None
    ramp: RampArrivals | None = None
    trace: TraceArrivals | None = None
    concurrency: Annotated[int, Ge(1)] | None = None
    capacity: CapacitySpec | None = None
    duration_s: Annotated[float, Gt(0)] = 60.0
    warmup_s: Annotated[float, Ge(0)] = 5.0
    max_requests: Annotated[int, Ge(1)] | None = None
    repeats: Annotated[int, Ge(1)] = 1

    @property
    def offered_rps(self) -> float | None:
        """Mean requests a second of an open loop; None for the others, and for a trace, which only its file tells."""
        spread = self.gamma or self.bursts
        if spread is not None:
            return spread.rps
        if self.ramp is not None:
            return (self.ramp.from_rps + self.ramp.to_rps) / 2
        return self.poisson_rps or self.constant_rps

    @property
    def open_loop(self) -> bool:
        """Whether requests arrive at times of their own (a capacity in requests a second is searched by such)."""
        if self.capacity is not None:
            return self.capacity.of == "rps"
        return self.concurrency is None


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
    quality: QualitySpec | None = None


# --- study ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetSpec:
    """`trials` counts launches, the reference included; `hours` is wall time of the whole study."""

    trials: Annotated[int, Ge(1)] = 40
    hours: Annotated[float, Gt(0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinalsSpec:
    """What follows the search: the best `finalists` and the reference are launched again, round by round, until they
    separate (`auto`) or for so many rounds; then the winner is loaded for `soak_s` (0: no soak). `shifts`: whether load
    and lengths are shifted by 30 % in the soak's launch, too (None: where launches are simulated in virtual time).
    Differences up to `equal_ratio` are of no matter. All this comes on top of the budget's trials.
    """

    finalists: Annotated[int, Ge(1), Le(8)] = 3
    rounds: Annotated[int, Ge(1), Le(50)] | Literal["auto"] = "auto"
    soak_s: Annotated[float, Ge(0)] = 300.0
    shifts: bool | None = None
    equal_ratio: Annotated[float, Ge(0), Lt(1)] = 0.02


NAMED_SAMPLERS = ("auto", "tpe", "random", "qmc", "nsga2", "gp", "grid")


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplerSpec:
    """`kind`: one of NAMED_SAMPLERS, or where an Optuna sampler is found: `module:Class`, or `optunahub:package:Class`;
    `kwargs` are its arguments. `stop_when_settled`: whether the search ends before its budget once a launch is not
    expected to be worth its time (None: as the sampler does, which is yes for `auto`; no other can tell)."""

    kind: str = "auto"
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    stop_when_settled: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """What an API charges: US dollars per million tokens of prompts and of answers."""

    usd_per_million_input_tok: Annotated[float, Ge(0)] = 0.0
    usd_per_million_output_tok: Annotated[float, Gt(0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class OverheadSpec:
    """What a deployment costs a month beside its machines, by the user's own figures."""

    network_usd: Annotated[float, Ge(0)] = 0.0
    engineering_usd: Annotated[float, Ge(0)] = 0.0
    operations_usd: Annotated[float, Ge(0)] = 0.0
    downtime_hours: Annotated[float, Ge(0)] = 0.0
    downtime_usd_per_hour: Annotated[float, Ge(0)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PriceSpec:
    """What serving costs, in US dollars: by the GPU, by the machine (a server without GPUs), or by the token (an API).

    `rate_rps` is the traffic to be served, for which a month is reckoned: replicas keep `headroom_ratio` of their
    capacity free, each is started `starts_per_month` times. `api` is a managed API's price that it is held against.
    """

    usd_per_gpu_hour: Annotated[float, Gt(0)] | None = None
    usd_per_hour: Annotated[float, Gt(0)] | None = None
    usd_per_million_input_tok: Annotated[float, Ge(0)] | None = None
    usd_per_million_output_tok: Annotated[float, Gt(0)] | None = None
    rate_rps: Annotated[float, Gt(0)] | None = None
    headroom_ratio: Annotated[float, Ge(0), Lt(1)] = 0.3
    starts_per_month: Annotated[float, Ge(0)] = 0.0
    overheads: OverheadSpec = field(default_factory=OverheadSpec)
    api: TokenPrice | None = None

    def hourly_usd(self, gpus: int) -> float | None:
        """Dollars an hour of a replica with so many GPUs; None for an API, which charges by the token."""
        return self.usd_per_hour if self.usd_per_gpu_hour is None else self.usd_per_gpu_hour * gpus

    @property
    def tokens(self) -> TokenPrice | None:
        """What an API charges; None where machines are paid for."""
        if self.usd_per_million_output_tok is None:
            return None
        return TokenPrice(
            usd_per_million_input_tok=self.usd_per_million_input_tok or 0.0,
            usd_per_million_output_tok=self.usd_per_million_output_tok,
        )


ENGINE = "engine"
"""What the choice of engine is called in a study of several."""


def parameter_of(engine: str, name: str) -> str:
    """Return what a parameter is called beside those of other engines; an engine's name holds no dot."""
    return f"{engine}.{name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineEntry:
    """One of several engines of a study, with what is searched of it. `engine.name` is set."""

    engine: EngineSpec
    search_space: SpaceSpec
    incumbent: Args | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StudySpec:
    """A resolved study. `incumbent`: the arguments of what runs today, imported from YAML or a command line.

    With several `engines`, `engine` and `incumbent` are those of the first, and `search_space` shows the whole: the
    engine as a choice, the parameters of each under its name. What works on one engine is given `of_engine`.
    `variants_dir` is where prepared checkpoints are kept; None: in the user's cache.
    """

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
    price: PriceSpec | None = None
    finals: FinalsSpec | None = None
    engines: tuple[EngineEntry, ...] = ()
    variants: tuple[VariantSpec, ...] = ()
    variants_dir: str | None = None

    @property
    def simulated(self) -> bool:
        """True when no real engine runs: such a study is never evidence."""
        return self.engine.kind is EngineKind.SIMULATED or self.engine.simulate is not None

    @property
    def engine_names(self) -> tuple[str | None, ...]:
        """What its engines are called, in order; (None,) where there is only one, which has no name."""
        return tuple(entry.engine.name for entry in self.engines) or (None,)

    def of_engine(self, name: str | None) -> StudySpec:
        """Return the same study with one of its engines alone; itself where it has but one (`name` None). Raises
        KeyError."""
        if not self.engines and name in (None, self.engine.name):
            return self
        for entry in self.engines:
            if entry.engine.name == name:
                return replace(
                    self,
                    engine=entry.engine,
                    search_space=entry.search_space,
                    incumbent=entry.incumbent,
                    engines=(),
                )
        raise KeyError(name)

    def variant(self, name: str) -> VariantSpec:
        """Return one of its variants. Raises KeyError."""
        return {variant.name: variant for variant in self.variants}[name]
