"""A search space ready to be searched: what Optuna is asked, and candidates that pass every rule."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from autotune.records.spec import ENGINE, Args, Choice, Domain, IntRange, ParamValue, parameter_of
from autotune.records.trial import Candidate, Role, fingerprint
from autotune.records.variants import BASE, CHECKPOINT
from autotune.space.domain import ask, distribution, draw, member, only_value
from autotune.space.environment import flat, known_values, merged
from autotune.space.expression import Expression, ExpressionError

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


def named_under(engine: str, params: Mapping[str, ParamValue]) -> dict[str, ParamValue]:
    """Return one engine's parameters as Optuna calls them beside another's, and the engine itself."""
    return {ENGINE: engine, **{parameter_of(engine, own): value for own, value in params.items()}}


PARALLELISM = "tensor_parallel_size"  # spelt alike by vLLM and TensorRT-LLM


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of the space. Active where `when` is true; a domain with one value is a constant, not searched."""

    name: str
    domain: Domain
    when: Expression | None = None

    def active(self, env: Mapping[str, object]) -> bool:
        """Return whether it is given to the engine. Raises ExpressionError."""
        return self.when is None or bool(self.when.value(env))

    def may_be_active(self, env: Mapping[str, object]) -> bool:
        """Like `active` for arguments that came from elsewhere: yes where a name is unknown, no where it errs."""
        try:
            return self.when is None or self.when.holds(env)
        except ExpressionError:
            return False


@dataclass(frozen=True, slots=True, kw_only=True)
class RuledOut:
    """A proposal that breaks a rule of the space: it costs no launch."""

    params: Mapping[str, ParamValue]
    rule: str
    reason: str
    engine: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Made by `build_space`; immutable, and the same for the whole study.

    `parameters` stand in an order in which conditions are met before what depends on them. `derived` are values known
    before the search; `computed` are those that depend on parameters. `known` is what expressions know from the start.
    `notes` say in words what was taken out of the space, and why. `engine` is its engine's name in a study of several.
    `checkpoints` says what the engine loads in the place of the model, by the values of `checkpoint`.
    """

    kind: str
    model: str
    engine: str | None = None
    checkpoints: Mapping[str, str] = field(default_factory=dict)
    fixed: Args
    known: Mapping[str, ParamValue]
    parameters: tuple[Parameter, ...]
    derived: Mapping[str, ParamValue]
    computed: Mapping[str, Expression]
    rules: tuple[Expression, ...]
    notes: tuple[str, ...] = ()

    @property
    def dimensions(self) -> tuple[Parameter, ...]:
        """Those parameters that have more than one value."""
        return tuple(parameter for parameter in self.parameters if only_value(parameter.domain) is None)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of every dimension; it does not change during a study."""
        return {parameter.name: distribution(parameter.domain) for parameter in self.dimensions}

    def suggest(self, trial: optuna.Trial) -> Candidate | RuledOut:
        """Ask `trial` for the active parameters, conditions first; return a candidate, or why it is none."""
        return self._fill(lambda parameter: ask(trial, parameter.name, parameter.domain))

    def sample(self, rng: random.Random, *, ends_ratio: float = 0.0) -> Candidate | RuledOut:
        """Like `suggest` with values from `rng`; with probability `ends_ratio` each is an end of its range."""
        return self._fill(lambda parameter: draw(parameter.domain, rng, ends_ratio=ends_ratio))

    def reference(self, incumbent: Args | None) -> Candidate:
        """Return what the gain is measured against: what runs today, else the engine's defaults.

        The user's fixed arguments are given to it too where the incumbent does not set them, but no values derived
        from the workload.
        """
        return next(self.references(incumbent))

    def as_asked(self, candidate: Candidate) -> Candidate:
        """Return a candidate of this space with its parameters called as Optuna calls them."""
        if self.engine is None:
            return candidate
        return replace(candidate, params=named_under(self.engine, candidate.params))

    def references(self, incumbent: Args | None) -> Iterator[Candidate]:
        """Yield the reference, then the nearest configurations to put in its place where the engine can't hold it.

        First with the values derived from the workload (its own context length instead of the model's), then also
        spread over as many GPUs as the space allows; each once.
        """
        steps: tuple[Args, ...] = ({}, self.derived, {**self.derived, **self._widest()})
        seen: set[str] = set()
        for step in steps:
            args = merged(self.fixed, incumbent or {}, step)
            candidate = self._candidate(self.in_domain(args), args, Role.REFERENCE)
            if candidate.fingerprint not in seen:
                seen.add(candidate.fingerprint)
                yield candidate

    def _widest(self) -> dict[str, ParamValue]:
        domain = next((parameter.domain for parameter in self.parameters if parameter.name == PARALLELISM), None)
        match domain:
            case Choice(values=values):
                return {PARALLELISM: max(value for value in values if isinstance(value, int))}
            case IntRange(high=high):
                return {PARALLELISM: high}
        return {}

    def in_domain(self, args: Args) -> dict[str, ParamValue]:
        """Return those dimensions that `args` sets to a value the space has: what Optuna can be told about `args`."""
        args = {CHECKPOINT: BASE, **args}
        given, env = dict(flat(args)), {**self.known, **known_values(args)}
        found = {
            parameter.name: member(parameter.domain, given[parameter.name])
            for parameter in self.dimensions
            if parameter.name in given and parameter.may_be_active(env)
        }
        return {name: value for name, value in found.items() if value is not None}

    def nearest(self, args: Args) -> dict[str, ParamValue]:
        """Like `in_domain`, numbers beyond a range taken to its end."""
        ranges = {p.name: p.domain for p in self.dimensions if not isinstance(p.domain, Choice)}
        clipped = {
            name: min(max(value, ranges[name].low), ranges[name].high)
            if name in ranges and isinstance(value, int | float)
            else value
            for name, value in flat(args)
        }
        return self.in_domain(clipped)

    def _fill(self, choose: Callable[[Parameter], ParamValue]) -> Candidate | RuledOut:
        env: dict[str, ParamValue] = dict(self.known)
        params: dict[str, ParamValue] = {}
        given: dict[str, ParamValue] = {}
        try:
            for parameter in self.parameters:
                if parameter.active(env):
                    constant = only_value(parameter.domain)
                    value = choose(parameter) if constant is None else constant
                    env[parameter.name] = given[parameter.name] = value
                    if constant is None:
                        params[parameter.name] = value
            computed = derived_values(self.computed, env)
            env |= computed
            broken = self.broken_rule(env)
        except ExpressionError as error:
            return RuledOut(params=params, rule="", reason=str(error))
        if broken is not None:
            return RuledOut(params=params, rule=broken.text, reason=in_words(broken, env))
        args = merged(self.derived, computed, self.fixed, given)
        return self._candidate(params, args, Role.SEARCH)

    def broken_rule(self, env: Mapping[str, object]) -> Expression | None:
        """Return the first rule that does not hold. Raises ExpressionError."""
        return next((rule for rule in self.rules if not rule.holds(env)), None)

    def _candidate(self, params: Mapping[str, ParamValue], args: Args, role: Role) -> Candidate:
        whose = self.kind if self.engine is None else f"{self.engine} {self.kind}"
        chosen = args.get(CHECKPOINT, BASE)
        given = {name: value for name, value in args.items() if name != CHECKPOINT}
        return Candidate(
            params=params,
            args=given,
            role=role,
            fingerprint=fingerprint(whose, self.checkpoints.get(chosen, self.model), given),
            engine=self.engine,
            checkpoint=None if chosen == BASE else chosen,
        )


def derived_values(expressions: Mapping[str, Expression], env: Mapping[str, object]) -> dict[str, ParamValue]:
    """Return the values of those expressions that can be known, 4096.0 as 4096, which is what engines take for counts.

    Raises ExpressionError.
    """
    values = {name: expression.value(env) for name, expression in expressions.items()}
    return {
        name: int(value) if isinstance(value, float) and value.is_integer() else value
        for name, value in values.items()
        if value is not None
    }


def in_words(rule: Expression, env: Mapping[str, object]) -> str:
    """Return which rule does not hold, and with which values."""
    values = ", ".join(f"{name} {env[name]}" for name in sorted(rule.names))
    return f"`{rule.text}` does not hold" + (f" with {values}" if values else "")
