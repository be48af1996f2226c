"""What a study costs in time: start-ups and load, an estimate and said to be one."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.engines.base import Engine
from autotune.models.config import RefusedConfig, from_vllm_args
from autotune.models.memory import plan_memory
from autotune.models.shapes import shape_of
from autotune.models.startup import startup_time
from autotune.records.spec import Args, EngineKind, LoadSpec, StudySpec
from autotune.search.finals import launches as finals_launches
from autotune.search.gate import VLLM_ARGUMENTS, gpu_of_study

ASSUMED_STARTUP_S = 90.0  # where model or GPU are unknown: small models take 30 s, large ones minutes
AROUND_S = 15.0  # canary, the last answers, the stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """Seconds of `trials` launches. `startup_known` False: its seconds are a guess for want of the model or the GPU.

    `finals` are the least and the most launches that come on top, the soak of `soak_s` included; `finals_s` their
    seconds. (0, 0) without finals.
    """

    trials: int
    first_startup_s: float
    startup_s: float
    startup_known: bool
    load_s: float
    total_s: float
    hours_limit: float | None
    finals: tuple[int, int] = (0, 0)
    finals_s: tuple[float, float] = (0.0, 0.0)
    soak_s: float = 0.0


def cost_of(spec: StudySpec, args: Args, engine: Engine) -> Cost:
    """Return what the study costs when every launch starts like `args` does, the reference's arguments."""
    known = _startups(spec, args, engine)
    first, later = known or (ASSUMED_STARTUP_S, ASSUMED_STARTUP_S)
    trials = spec.budget.trials
    load_s = _load_s(spec.objective.load) + AROUND_S
    finals, soak_s = finals_launches(spec.finals), spec.finals.soak_s if spec.finals else 0.0
    least_s, most_s = (count * (later + load_s) + (soak_s and soak_s - load_s + AROUND_S) for count in finals)
    return Cost(
        trials=trials,
        first_startup_s=first,
        startup_s=later,
        startup_known=known is not None,
        load_s=load_s,
        total_s=first + (trials - 1) * later + trials * load_s,
        hours_limit=spec.budget.hours,
        finals=finals,
        finals_s=(least_s, most_s),
        soak_s=soak_s,
    )


def _load_s(load: LoadSpec) -> float:
    """Seconds under load of a launch, at most: levels may be settled before, a trace may be shorter."""
    if load.capacity is not None:
        return load.capacity.load_s
    return load.repeats * (load.warmup_s + load.duration_s)


def _startups(spec: StudySpec, args: Args, engine: Engine) -> tuple[float, float] | None:
    """Seconds of a cold launch, and of one with the weights in memory; most candidates compile anew."""
    if spec.engine.kind is EngineKind.ENDPOINT:
        return 0.0, 0.0  # it runs already
    if spec.engine.kind not in VLLM_ARGUMENTS:
        return None
    shape, gpu = shape_of(spec.model), gpu_of_study(spec, engine)
    if shape is None or gpu is None:
        return None
    try:
        config = from_vllm_args(args, shape, gpu)
    except RefusedConfig:
        return None
    plan = plan_memory(config)
    return startup_time(config, plan).total_s, startup_time(config, plan, pages_cold=False).total_s
