"""The spaces of several engines as one: the engine is a choice, and under each hang its own parameters.

To Optuna a parameter is called by its engine's name, a dot, and the engine's own name for it, so that two engines with
a parameter of one name never share a distribution, and the dashboard says whose it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from autotune.records.spec import ENGINE, Args, Choice, ParamValue, StudySpec, parameter_of
from autotune.records.trial import Candidate
from autotune.space.build import build_space
from autotune.space.domain import ask, distribution
from autotune.space.space import RuledOut, Space, named_under

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution


def build_spaces(spec: StudySpec, *, gpus: int) -> Space | EngineSpaces:
    """Return the search space of a study on a machine with `gpus` GPUs: of its engine, or of all of several.

    Raises InputError when an engine has no candidate left.
    """
    if not spec.engines:
        return build_space(spec, gpus=gpus)
    return EngineSpaces({str(name): build_space(spec.of_engine(name), gpus=gpus) for name in spec.engine_names})


@dataclass(frozen=True, slots=True)
class EngineSpaces:
    """Offers what the search asks of a `Space`; `spaces` by the names of their engines, in the study's order."""

    spaces: Mapping[str, Space]

    @property
    def notes(self) -> tuple[str, ...]:
        """What was taken out of each space, and why."""
        return tuple(f"{name}: {note}" for name, space in self.spaces.items() for note in space.notes)

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of the engine and of every parameter of each."""
        found: dict[str, BaseDistribution] = {ENGINE: distribution(self._engines)}
        for name, space in self.spaces.items():
            found |= {parameter_of(name, own): dist for own, dist in space.distributions().items()}
        return found

    def suggest(self, trial: optuna.Trial) -> Candidate | RuledOut:
        """Ask `trial` for the engine, then for the active parameters of that one."""
        name = str(ask(trial, ENGINE, self._engines))
        found = self.spaces[name].suggest(cast("optuna.Trial", _Below(trial, name)))
        return replace(found, engine=name, params=named_under(name, found.params))

    def in_domain(self, args: Args) -> dict[str, ParamValue]:
        """Return what Optuna can be told about `args`, which name their engine as `engine`."""
        return self._told(args, nearest=False)

    def nearest(self, args: Args) -> dict[str, ParamValue]:
        """Like `in_domain`, numbers beyond a range taken to its end."""
        return self._told(args, nearest=True)

    @property
    def _engines(self) -> Choice:
        return Choice(values=tuple(self.spaces))

    def _told(self, args: Args, *, nearest: bool) -> dict[str, ParamValue]:
        name = args[ENGINE]
        space = self.spaces[name]
        own = {_bare(name, key): value for key, value in args.items() if key != ENGINE}
        return named_under(name, space.nearest(own) if nearest else space.in_domain(own))


def _bare(name: str, key: str) -> str:
    return key.removeprefix(parameter_of(name, ""))


@dataclass(frozen=True, slots=True)
class _Below:
    """An Optuna trial that is asked for the parameters of one engine."""

    trial: Any
    engine: str

    def suggest_categorical(self, name: str, choices: Any) -> Any:  # noqa: ANN401 - Optuna's
        return self.trial.suggest_categorical(parameter_of(self.engine, name), choices)

    def suggest_int(self, name: str, low: int, high: int, **more: Any) -> Any:  # noqa: ANN401 - Optuna's
        return self.trial.suggest_int(parameter_of(self.engine, name), low, high, **more)

    def suggest_float(self, name: str, low: float, high: float, **more: Any) -> Any:  # noqa: ANN401 - Optuna's
        return self.trial.suggest_float(parameter_of(self.engine, name), low, high, **more)
