"""A strategy that is an Optuna sampler: a study of its own in memory, a way of telling crashes, and perhaps a gate."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import optuna
from optuna.trial import TrialState, create_trial

from autotune.engines.simulated.engine import SimulatedEngine
from autotune.records.spec import Args, Choice, EngineKind, ObjectiveSpec, ParamValue
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Phase, Role, TrialRecord
from autotune.search.gate import Exclusion, Gate, Source, make_gate
from autotune.search.study import user_attributes
from autotune.search.told import Told, told
from autotune.space import RuledOut, Space
from benchmarks.search.protocol import Study
from benchmarks.search.records import ruled_out

if TYPE_CHECKING:
    from optuna.samplers import BaseSampler

PROPOSALS = 300  # refused in a row, before a sampler is given up


def gate_of(study: Study) -> Gate:
    """Return the product's gate for a study: rules, memory model, learned bounds and the engine's own check. On a real
    grid, of which every configuration was accepted, there is nothing to exclude."""
    if study.spec.engine.kind is not EngineKind.SIMULATED:
        return Gate(model=None, memory=None, preflight=None, tell=_unheard)
    engine = SimulatedEngine(study.spec)
    with engine.preflight(gpus=study.gpus, tell=_unheard) as preflight:
        return make_gate(study.spec, engine, study.gpus, preflight, _unheard)


def _unheard(_: object) -> None:
    """Nobody watches."""


# --- what is told -----------------------------------------------------------------------------------------------------

Tell = Callable[[TrialRecord, ObjectiveSpec, Sequence[float]], Told]
"""What a sampler is told of a record, given the values told so far."""


def constrained(record: TrialRecord, objective: ObjectiveSpec, seen: Sequence[float]) -> Told:
    """As the product tells TPE: a crash is pruned, with a constraint of its own (vllm-optimizer's is alike)."""
    return told(record, objective, seen=seen)


def complete_only(record: TrialRecord, objective: ObjectiveSpec, seen: Sequence[float]) -> Told:
    """As the product tells samplers that learn from COMPLETE trials alone: a crash is the worst value so far."""
    return told(record, objective, complete_only=True, seen=seen)


def failing(record: TrialRecord, objective: ObjectiveSpec, seen: Sequence[float]) -> Told:
    """As auto-tuning-vllm: a crash is FAIL, which teaches nothing; whoever misses an SLO scores nothing."""
    lesson = told(record, objective, seen=seen)
    if lesson.value is None:
        return Told(state="FAIL")
    missed = any(x > 0 for x in lesson.constraints.values())
    return Told(state="COMPLETE", value=0.0 if missed else lesson.value)


# --- the session ------------------------------------------------------------------------------------------------------


@dataclass(slots=True, kw_only=True)
class OptunaSession:
    """Follows `protocol.Session`. `fixed`: parameters that are not searched, at their values; `gate`: what it excludes
    is told, and not launched; `observe` is shown every record as it is."""

    study: Study
    sampler: BaseSampler
    tells: Tell = constrained
    gate: Gate | None = None
    fixed: Mapping[str, ParamValue] = field(default_factory=dict)
    observe: Callable[[TrialRecord], None] = _unheard
    _optuna: optuna.Study = field(init=False)
    _asked: optuna.Trial | None = None
    _seen: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna.create_study(sampler=self.sampler, direction=self.study.spec.objective.direction.value)

    def ask(self) -> Candidate | None:
        """Return the sampler's next proposal that is worth a launch; None when it finds no more."""
        for _ in range(PROPOSALS):
            try:
                trial = self._optuna.ask()
            except RuntimeError:  # a grid that is done
                return None
            proposal = self.study.space.suggest(_Fixing(trial, self.fixed))  # type: ignore[arg-type]
            refusal = self._refusal(proposal)
            if refusal is None:
                assert isinstance(proposal, Candidate)
                self._asked = trial
                return proposal
            self._asked = trial
            self.tell(refusal)
        return None

    def _refusal(self, proposal: Candidate | RuledOut) -> TrialRecord | None:
        """The record of a proposal that isn't launched: a rule forbids it, or the gate excludes it."""
        if isinstance(proposal, RuledOut):
            nothing = Candidate(params=proposal.params, args=proposal.params, role=Role.SEARCH, fingerprint="")
            return ruled_out(self.study.spec, nothing, _by_rule(proposal))
        exclusion = self.gate.exclude(proposal.args) if self.gate is not None else None
        return None if exclusion is None else ruled_out(self.study.spec, proposal, exclusion)

    def tell(self, record: TrialRecord) -> None:
        """Tell the sampler; what was not asked for (the reference) is added as far as the space has it."""
        objective = self.study.spec.objective
        lesson = self.tells(record, objective, tuple(self._seen))
        if lesson.value is not None:
            self._seen.append(lesson.value)
        if self.gate is not None:
            self.gate.ran(record)
        self.observe(record)
        trial, self._asked = self._asked, None
        if trial is None:
            self._optuna.add_trial(self._frozen(record, lesson))
            return
        for name, value in lesson.constraints.items():
            trial.set_constraint(name, value)
        for name, value in user_attributes(record).items():
            trial.set_user_attr(name, value)
        self._optuna.tell(trial, lesson.value, state=TrialState[lesson.state])

    def _frozen(self, record: TrialRecord, lesson: Told) -> optuna.trial.FrozenTrial:
        distributions = self.study.space.distributions()
        known = self.study.space.in_domain({**start_of(self.study.space), **record.args})
        known = {name: value for name, value in known.items() if name not in self.fixed}
        return create_trial(
            state=lesson.trial_state,
            value=lesson.value,
            params=known,
            distributions={name: distributions[name] for name in known},
            user_attrs=user_attributes(record),
            constraints=dict(lesson.constraints),
        )


DEFAULTS: Args = {
    "max_num_batched_tokens": 8192,
    "max_num_seqs": 1024,
    "gpu_memory_utilization": 0.92,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "block_size": 16,
    "optimization_level": 2,
    "async_scheduling": True,
    "stream_interval": 1,
    "quantization": "None",
    "kv_cache_dtype": "auto",
    "tensor_parallel_size": 1,
}
"""What vLLM 0.32 runs with on a large GPU where nothing is said: the reference, in the space's own words."""


def start_of(space: Space) -> dict[str, ParamValue]:
    """Return a value of every parameter: vLLM's default, or where a space lacks it, its last or largest value."""
    known = space.in_domain(DEFAULTS)
    ends = {p.name: p.domain.values[-1] if isinstance(p.domain, Choice) else p.domain.high for p in space.dimensions}
    return {**ends, **known}


def _by_rule(proposal: RuledOut) -> Exclusion:
    failure = Failure(outcome=Outcome.BAD_CONFIG, fault=Fault.CANDIDATE, phase=Phase.LAUNCH, cause=proposal.reason)
    return Exclusion(source=Source.SPACE, failure=failure)


@dataclass(slots=True)
class _Fixing:
    """A trial of which some parameters are not asked. Follows `optuna.Trial` as far as a space asks it."""

    trial: optuna.Trial
    fixed: Mapping[str, ParamValue]

    def suggest_categorical(self, name: str, choices: Sequence[ParamValue]) -> ParamValue | None:
        return self.fixed[name] if name in self.fixed else self.trial.suggest_categorical(name, choices)

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> ParamValue:
        return self.fixed[name] if name in self.fixed else self.trial.suggest_int(name, low, high, step=step, log=log)

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> ParamValue:
        return self.fixed[name] if name in self.fixed else self.trial.suggest_float(name, low, high, step=step, log=log)
