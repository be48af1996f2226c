"""From a `SpaceSpec` to a `Space`: what is fixed, constant or impossible is taken out before the search."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter

from autotune.errors import InputError, Problem
from autotune.records.spec import ParameterSpec, ParamValue, StudySpec
from autotune.records.variants import BASE, CHECKPOINT, VariantSpec
from autotune.space.domain import narrowed, on_grid, only_value
from autotune.space.environment import environment, flat
from autotune.space.expression import Expression, ExpressionError, parse
from autotune.space.space import Parameter, Space, derived_values, in_words


class Impossible(Exception):
    """No candidate can exist; `problem` says why, and where in the study."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.message)
        self.problem = problem


def build_space(spec: StudySpec, *, gpus: int) -> Space:
    """Return the search space of a study on a machine with `gpus` GPUs.

    Parameters that the user fixes in `engine.args` are not searched. Parameters that may change the model's output
    (`changes_output`) are taken out, wherever the space came from, unless the objective has `quality` limits or the
    study says `quality: unchecked`. Rules
    over one parameter narrow it; what is left with one value becomes a constant. `Space.notes` says all of this.
    Raises InputError when no candidate is left.
    """
    try:
        return build(spec, gpus)
    except Impossible as error:
        raise InputError(error.problem.message, error.problem.hint) from error
    except ExpressionError as error:
        raise InputError(str(error), "correct the expression in the search space") from error


def build(spec: StudySpec, gpus: int | None) -> Space:
    """Like `build_space`; with `gpus` None, rules about them are left open. Raises Impossible, ExpressionError."""
    space, known = spec.search_space, environment(spec, gpus)
    derived = {name: parse(text) for name, text in space.derived.items() if name not in dict(flat(spec.engine.args))}
    searched = {parameter.name for parameter in space.parameters}
    early = {name: text for name, text in derived.items() if not text.names & searched}
    with _placed("search_space", "derived"):
        values = derived_values(early, known)
    draft = _Draft(known={**known, **values}, rules=[parse(text) for text in space.rules])
    draft.parameters = [
        _parameter(parameter) for parameter in _in_order(space.parameters) if draft.keep(parameter, spec)
    ]
    if all(parameter.name != CHECKPOINT for parameter in draft.parameters):
        draft.known[CHECKPOINT] = BASE  # so that conditions on it hold where it is not searched
    while draft.settle():
        pass  # each round uses what the last one found out
    draft.note_constants()
    return Space(
        kind=spec.engine.kind.value,
        model=spec.model,
        engine=spec.engine.name,
        checkpoints={variant.name: _loaded(spec, variant) for variant in spec.variants},
        fixed=spec.engine.args,
        known=draft.known,
        parameters=tuple(draft.parameters),
        derived=values,
        computed={name: text for name, text in derived.items() if name not in early},
        rules=tuple(draft.rules),
        notes=tuple(draft.notes),
    )


def _loaded(spec: StudySpec, variant: VariantSpec) -> str:
    """What tells a variant from all other checkpoints in a fingerprint: its name, or how it is made of which model."""
    return variant.model or " ".join((spec.model, "by", *variant.command))


def _parameter(spec: ParameterSpec) -> Parameter:
    return Parameter(name=spec.name, domain=on_grid(spec.domain), when=parse(spec.when) if spec.when else None)


def _in_order(parameters: tuple[ParameterSpec, ...]) -> Iterator[ParameterSpec]:
    """Yield parameters so that those in a condition come before what it governs."""
    by_name = {parameter.name: parameter for parameter in parameters}
    graph = {
        name: sorted(parse(parameter.when).names & by_name.keys()) if parameter.when else []
        for name, parameter in by_name.items()
    }
    try:
        yield from (by_name[name] for name in TopologicalSorter(graph).static_order())
    except CycleError as error:
        circle = error.args[1]
        problem = Problem(
            path=("search_space", "parameters", circle[0], "when"),
            message=f"conditions go in a circle: {' -> '.join(reversed(circle))}",
            hint="drop one of these conditions",
        )
        raise Impossible(problem) from None


@contextmanager
def _placed(*path: str | int) -> Iterator[None]:
    """Say where an expression stands that can't be evaluated."""
    try:
        yield
    except ExpressionError as error:
        hint = "give the values that it names the right types"
        raise Impossible(Problem(path=path, message=str(error), hint=hint)) from None


@dataclass
class _Draft:
    """A space while it is narrowed."""

    known: dict[str, ParamValue]
    rules: list[Expression]
    parameters: list[Parameter] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def keep(self, parameter: ParameterSpec, spec: StudySpec) -> bool:
        """Return whether a parameter is searched at all; note why not."""
        fixed = dict(flat(spec.engine.args))
        if parameter.name in fixed or parameter.name in spec.engine.args:
            self.notes.append(f"{parameter.name} is not searched: the study fixes it")
            return False
        checked = spec.objective.quality is not None
        if parameter.changes_output and not checked and spec.quality != "unchecked":
            self.notes.append(
                f"{parameter.name} is not searched: it may change what the model says; "
                "`quality: {}` in the objective has it checked, `quality: unchecked` in the study allows it"
            )
            return False
        return True

    def settle(self) -> bool:
        """Narrow, drop what is never active, and move constants to what is known; return whether anything changed."""
        before = (list(self.parameters), len(self.known))
        for index, rule in enumerate(self.rules):
            with _placed("search_space", "rules", index):
                self._apply(index, rule)
        self.parameters = [
            settled for parameter in self.parameters if (settled := self._conditioned(parameter)) is not None
        ]
        for parameter in self.parameters:
            value = only_value(parameter.domain)
            if value is not None and parameter.when is None:
                self.known[parameter.name] = value
        return before != (self.parameters, len(self.known))

    def _apply(self, index: int, rule: Expression) -> None:
        """Use a rule that leaves at most one name open."""
        path = ("search_space", "rules", index)
        unknown = rule.names - self.known.keys()
        if not unknown and not rule.holds(self.known):
            hint = "change engine.args, the workload or the rule"
            raise Impossible(Problem(path=path, message=in_words(rule, self.known), hint=hint))
        if len(unknown) == 1:
            self._narrow(rule, next(iter(unknown)), path)

    def _narrow(self, rule: Expression, name: str, path: tuple[str | int, ...]) -> None:
        for position, parameter in enumerate(self.parameters):
            if parameter.name != name:
                continue
            domain = narrowed(parameter.domain, rule, name, self.known)
            if domain is not None:
                self.parameters[position] = replace(parameter, domain=domain)
            elif parameter.when is None:
                raise Impossible(_nothing_left(rule, name, self.known, path))

    def _conditioned(self, parameter: Parameter) -> Parameter | None:
        if parameter.when is None or not parameter.when.names <= self._decided():
            return parameter
        with _placed("search_space", "parameters", parameter.name, "when"):
            if parameter.active(self.known):
                return replace(parameter, when=None)
        self.notes.append(f"{parameter.name} is not searched: `{parameter.when.text}` does not hold")
        return None

    def note_constants(self) -> None:
        """Note the parameters that have one value left."""
        for parameter in self.parameters:
            value = only_value(parameter.domain)
            if value is not None:
                self.notes.append(f"{parameter.name} is not searched: {value} is the only value left")

    def _decided(self) -> frozenset[str]:
        """Return every name that is no open parameter: it is known, or stays unknown for the whole study."""
        open_names = {parameter.name for parameter in self.parameters} - self.known.keys()
        every = {name for parameter in self.parameters if parameter.when for name in parameter.when.names}
        return frozenset(every - open_names)


def _nothing_left(rule: Expression, name: str, known: Mapping[str, object], path: tuple[str | int, ...]) -> Problem:
    values = ", ".join(f"{other} {known[other]}" for other in sorted(rule.names & known.keys()))
    message = f"no value of {name} obeys `{rule.text}`" + (f" with {values}" if values else "")
    return Problem(path=path, message=message, hint="widen the parameter, or change the rule")
