"""The simulator as a prior: what the scheduler model says of a candidate, with constants refitted as launches come in.

It knows plain decoders on GPUs of the table (and on a CPU, roughly). For anything else `simulator_prior` says why there
is none, and the search goes on without.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from statistics import median

import numpy as np
from numpy.typing import NDArray

from autotune.models.config import RefusedConfig, SchedulerConfig, from_vllm_args
from autotune.models.facts import model_config, model_folder, plain_decoder
from autotune.models.memory import MemoryPlan, outside_bytes, plan_memory
from autotune.models.shapes import GpuSpec, ModelShape, gpu_of, shape_of
from autotune.models.startup import compile_key, startup_time
from autotune.models.steptime import HOST, HostCosts
from autotune.models.trtllm_config import from_trtllm_args
from autotune.records.metrics import parse_metric
from autotune.records.spec import Args, EngineKind, ObjectiveSpec, SimulateSpec, StudySpec
from autotune.records.trial import Measurement, TrialRecord
from autotune.search.auto.calibration import Level, calibrated
from autotune.search.auto.constants import CONSTANTS, slowed
from autotune.search.auto.prior import Prediction
from autotune.search.auto.responses import Figures, Machine, capacity, excesses, level
from autotune.search.auto.traffic import Traffic, traffic_of
from autotune.trial.at_capacity import CAPACITIES
from autotune.trial.figures import at_operating_point
from autotune.trial.twin_of import AMPLE_TOKENS, CPU, CPU_HOST, gpu_of_machine

Floats = NDArray[np.float64]

REFITS = (1, 2, 5, 12, 30)
"""After so many measured launches the constants are refitted; one fit after two launches gets nearly all of it."""
DEMAND_BOUNDS = (0.2, 5.0)  # of activations and the rest, over what the memory model puts them at

Read = Callable[[Args, ModelShape, GpuSpec], SchedulerConfig]
READERS: dict[EngineKind, tuple[Read, str]] = {
    EngineKind.VLLM: (from_vllm_args, "vllm"),
    EngineKind.SIMULATED: (from_vllm_args, "vllm"),
    EngineKind.TENSORRT_LLM: (from_trtllm_args, "tensorrt_llm"),
}


def simulator_prior(spec: StudySpec) -> SimulatorPrior | str:
    """Return the simulator of a study's engine, model and traffic, or why there is none."""
    if spec.engines:
        return "several engines are not simulated beside one another"
    if spec.engine.kind not in READERS:
        return f"an engine of kind {spec.engine.kind.value} is not simulated"
    shape = _shape(spec)
    if shape is None:
        return f"the simulator does not know the shape of {spec.model}"
    metric = parse_metric(spec.objective.metric)
    if metric is None or metric.base == "gpu_memory_bytes":
        return f"{spec.objective.metric} is not simulated"
    traffic = traffic_of(spec.objective, spec.seed)
    if traffic is None:
        return "the lengths of the requests are not known before a server counts them"
    gpu = _gpu(spec)
    return SimulatorPrior(
        objective=spec.objective,
        read=READERS[spec.engine.kind][0],
        shape=shape,
        gpu=gpu or CPU,
        host=HOST if gpu else CPU_HOST,
        traffic=traffic,
        knows_memory=gpu is not None,
    )


def _shape(spec: StudySpec) -> ModelShape | None:
    """A shipped one, or by config.json where it describes a plain decoder: others' times and memory are another's."""
    known = shape_of(spec.model)
    folder = model_folder(spec.model, {**os.environ, **spec.engine.env})
    config = model_config(folder)
    if config is not None and not plain_decoder(config):
        return None
    return known or (None if folder is None else shape_of(str(folder)))


def _gpu(spec: StudySpec) -> GpuSpec | None:
    """The machine's kind of GPU as the engine's kernels use it; None for a CPU and for what the table lacks."""
    if spec.simulated:
        return gpu_of((spec.engine.simulate or SimulateSpec()).gpu, READERS[spec.engine.kind][1])
    found = gpu_of_machine(spec)
    if found is None:
        return None
    kernels = gpu_of(found.name, READERS[spec.engine.kind][1])
    return found if kernels is None else replace(kernels, memory_bytes=found.memory_bytes)


@dataclass(slots=True, kw_only=True)
class SimulatorPrior:
    """Fulfils `prior.Prior`. Its constants are a function of the first launches measured, whatever asked meanwhile."""

    objective: ObjectiveSpec
    read: Read
    shape: ModelShape
    gpu: GpuSpec
    host: HostCosts
    traffic: Traffic
    knows_memory: bool = True
    _launches: list[TrialRecord] = field(default_factory=list)
    _fitted: int = 0
    _logs: Floats = field(default_factory=lambda: np.zeros(len(CONSTANTS)))
    _demand: float = 1.0  # activations and the rest, over what the memory model says
    _best: float = 0.0  # capacity predicted so far
    _kv_tokens: int | None = None  # of the last launch, where memory isn't modelled

    @property
    def version(self) -> int:
        """How many launches the constants are fitted to, once they are."""
        return max((n for n in REFITS if n <= len(self._launches)), default=0)

    @property
    def logs(self) -> Floats:
        """The logarithmic factors of `constants.CONSTANTS`."""
        self._refit()
        return self._logs

    def learn(self, record: TrialRecord) -> None:
        """Take note of a launch that was measured."""
        if record.outcome.measured and record.measurements:
            self._launches.append(record)

    def predict(self, args: Args) -> Prediction | None:
        """Simulate `args`; None where the simulator refuses them, or has no name for what they ask."""
        self._refit()
        config = self._config(args)
        if config is None:
            return None
        plan = self._plan(config)
        machine = self._machine(config, plan, self._logs)
        objective, found = self._simulated(machine)
        cold, warm = (startup_time(config, plan, compile_cold=c, pages_cold=False).total_s for c in (True, False))
        return Prediction(
            objective=cold if self.objective.metric == "startup_s" else objective,
            excess=found,
            margins=_margins(config, plan) if self.knows_memory else None,
            startup_s=cold,
            warm_startup_s=warm,
            compiled=compile_key(config),
        )

    def _simulated(self, machine: Machine) -> tuple[float | None, dict[str, float]]:
        if self.objective.load.capacity is not None and self.objective.metric in CAPACITIES:
            found = capacity(machine, self.traffic, self.objective, self._best)
            self._best = max(self._best, found)
            return found, {}
        figures = self._level(machine)
        if figures is None:
            return None, {}
        return figures.value(self.objective.metric), dict(excesses(figures, self.objective.slos))

    def _level(self, machine: Machine) -> Figures | None:
        """The study's load; where that is a capacity to be found, its figures at the capacity."""
        factor = 1.0
        if self.objective.load.capacity is not None:
            own = float(self.traffic.concurrency or self.traffic.rps or 1.0)
            factor = capacity(machine, self.traffic, self.objective) / own
        return level(machine, self.traffic, self.objective.slos, factor) if factor > 0 else None

    def _config(self, args: Args) -> SchedulerConfig | None:
        try:
            return self.read(args, self.shape, self.gpu)
        except (RefusedConfig, ValueError, TypeError):
            return None  # what the engine would refuse too, or what has no simulation

    def _plan(self, config: SchedulerConfig) -> MemoryPlan:
        """The memory plan with what launches showed of it."""
        plan = plan_memory(config)
        if config.kv_cache_memory_bytes is not None or config.blocks_override is not None:
            return plan
        more = (self._demand - 1) * (plan.activation_bytes + plan.other_bytes)
        kv_bytes = plan.kv_bytes - more
        blocks = int(max(0.0, kv_bytes) // (plan.kv_token_bytes * plan.block_size)) - 1
        return replace(plan, kv_bytes=kv_bytes, blocks=max(0, blocks))

    def _machine(self, config: SchedulerConfig, plan: MemoryPlan, logs: Floats, tokens: int | None = None) -> Machine:
        gpu, host = slowed(self.gpu, self.host, logs)
        longest = config.max_model_len // config.block_size + 1
        blocks = plan.blocks if self.knows_memory else (self._kv_tokens or AMPLE_TOKENS) // config.block_size
        blocks = blocks if tokens is None else tokens // config.block_size
        # One that can't hold a request is judged by its margins; what it would do if it could is still worth knowing.
        return Machine(config=replace(config, gpu=gpu), host=host, blocks=max(blocks, longest))

    # --- fitting ------------------------------------------------------------------------------------------------------

    def _refit(self) -> None:
        if self._fitted == self.version:
            return
        self._fitted, self._best = self.version, 0.0
        known = self._launches[: self.version]
        self._demand = self._demand_of(known)
        tokens = [t for record in known if (t := _kv_tokens(record)) is not None]
        self._kv_tokens = tokens[-1] if tokens else None
        levels = [found for record in known if (found := self._measured(record)) is not None]
        self._logs = calibrated(levels, self._again)

    def _measured(self, record: TrialRecord) -> Level | None:
        config, measured = self._config(record.args), at_operating_point(record)
        if config is None or not measured:
            return None
        relevant = np.array([constant.matters(config) for constant in CONSTANTS], dtype=np.bool_)
        return Level(record=record, measurement=measured[-1], relevant=relevant)

    def _again(self, record: TrialRecord, measured: Measurement, logs: Floats) -> Figures | None:
        config = self._config(record.args)
        if config is None:
            return None
        machine = self._machine(config, self._plan(config), logs, _kv_tokens(record))
        own = float(self.traffic.concurrency or self.traffic.rps or 1.0)
        load = float(measured.concurrency or measured.offered_rps or own)
        return level(machine, self.traffic, self.objective.slos, load / own)

    def _demand_of(self, records: list[TrialRecord]) -> float:
        """What launches left to the KV cache, as a factor on the demands that are estimated rather than counted."""
        ratios = [ratio for record in records if (ratio := self._demand_shown(record)) is not None]
        return min(max(median(ratios), DEMAND_BOUNDS[0]), DEMAND_BOUNDS[1]) if ratios and self.knows_memory else 1.0

    def _demand_shown(self, record: TrialRecord) -> float | None:
        config, tokens = self._config(record.args), _kv_tokens(record)
        if config is None or tokens is None or config.kv_cache_memory_bytes or config.blocks_override:
            return None
        plan = plan_memory(config)
        left = tokens * plan.kv_token_bytes + plan.weights_bytes
        return (plan.total_bytes * config.gpu_memory_utilization - left) / (plan.activation_bytes + plan.other_bytes)


def _kv_tokens(record: TrialRecord) -> int | None:
    tokens = record.resolved.get("kv_cache_tokens")
    return tokens if isinstance(tokens, int) and tokens > 0 else None


def _margins(config: SchedulerConfig, plan: MemoryPlan) -> tuple[float, float]:
    """Shares of the GPU left: of the KV cache beyond one longest request, and outside the budget after graphs and the
    sampler's warm-up."""
    cache = plan.kv_bytes - config.max_model_len * plan.kv_token_bytes
    outside = outside_bytes(config, plan) - plan.graph_bytes - plan.sampler_bytes
    return cache / plan.total_bytes, outside / plan.total_bytes
