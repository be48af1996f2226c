"""Optuna samplers by the study file's names or by import path, and what each learns from a candidate that failed.

`auto` is our own (`search.auto`), `module:Class` any other Optuna sampler, `optunahub:package:Class` one of OptunaHub.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.records.spec import NAMED_SAMPLERS, SamplerSpec, StudySpec
from autotune.records.trial import Candidate, Role, TrialRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study

    from autotune.search.auto.candidates import Asks


HUB = "optunahub"


def _nothing(_: TrialRecord) -> None:
    """Most samplers learn from Optuna's trials alone."""


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler; whether it learns from COMPLETE trials alone, then crashes must be told as such; whether it has
    proposed all that it ever will; what of a record it wants beside the trial; why it would stop; and what the user
    should know of it."""

    sampler: BaseSampler
    complete_only: bool = False
    exhausted: Callable[[Study], bool] = lambda _: False
    observe: Callable[[TrialRecord], None] = _nothing
    why_settled: Callable[[Study], str | None] = lambda _: None
    notes: tuple[str, ...] = ()


def make_sampler(
    spec: SamplerSpec, *, seed: int, trials: int, distributions: Mapping[str, BaseDistribution]
) -> Sampler:
    """Return the sampler that a study file names; `auto` without a simulator and rules (see `make_auto`).

    `trials`: the budget, from which a random start is sized. Raises InputError when a sampler needs a package that is
    not installed, is not found at its path, or refuses its arguments.
    """
    if spec.kind in NAMED_SAMPLERS:
        return _MAKERS[spec.kind](seed, trials, distributions)
    return _imported(spec, seed)


def make_auto(spec: StudySpec, space: Asks) -> Sampler:
    """Return the sampler `auto` for a study: with the simulator of its engine as a prior, where there is one."""
    from autotune.search.auto import AutoSampler, simulator_prior  # noqa: PLC0415 - heavy

    several = "several engines have no simulator in common"
    prior = several if spec.engines else simulator_prior(spec)
    known = None if isinstance(prior, str) else prior
    sampler = AutoSampler(space, prior=known, seed=spec.seed, trials=spec.budget.trials)
    stops = spec.sampler.stop_when_settled is not False
    return Sampler(
        sampler,
        observe=sampler.observe,
        why_settled=sampler.why_settled if stops else lambda _: None,
        notes=() if known else (f"sampler auto goes by measurements alone: {prior}",),
    )


@dataclass(frozen=True, slots=True)
class _Flat:
    """A space without conditions or rules, by its distributions."""

    given: Mapping[str, BaseDistribution]

    def distributions(self) -> dict[str, BaseDistribution]:
        return dict(self.given)

    def suggest(self, trial: Any) -> Candidate:  # noqa: ANN401 - Optuna's trial, or what stands in for it
        params = {name: _asked(trial, name, dist) for name, dist in self.given.items()}
        return Candidate(params=params, args=params, role=Role.SEARCH, fingerprint="")


def _asked(trial: Any, name: str, dist: BaseDistribution) -> Any:  # noqa: ANN401 - Optuna's
    from optuna.distributions import CategoricalDistribution, IntDistribution  # noqa: PLC0415 - heavy

    if isinstance(dist, CategoricalDistribution):
        return trial.suggest_categorical(name, dist.choices)
    ask = trial.suggest_int if isinstance(dist, IntDistribution) else trial.suggest_float
    return ask(name, dist.low, dist.high, log=dist.log, step=dist.step)  # type: ignore[attr-defined]


def _auto(seed: int, trials: int, distributions: Mapping[str, BaseDistribution]) -> Sampler:
    from autotune.search.auto import AutoSampler  # noqa: PLC0415 - heavy

    sampler = AutoSampler(_Flat(distributions), seed=seed, trials=trials)
    return Sampler(sampler, observe=sampler.observe, why_settled=sampler.why_settled)


# --- Optuna's -----------------------------------------------------------------------------------------------------


def _tpe(seed: int, trials: int, _: Mapping[str, BaseDistribution]) -> Sampler:
    from optuna.samplers import TPESampler  # noqa: PLC0415 - heavy

    # Optuna's ten random trials would be the whole of a small budget; a quarter leaves it something to learn with.
    return Sampler(TPESampler(seed=seed, n_startup_trials=min(10, max(3, trials // 4))))


def _random(seed: int, _trials: int, _: Mapping[str, BaseDistribution]) -> Sampler:
    from optuna.samplers import RandomSampler  # noqa: PLC0415 - heavy

    return Sampler(RandomSampler(seed=seed))


def _qmc(seed: int, _trials: int, _: Mapping[str, BaseDistribution]) -> Sampler:
    import warnings  # noqa: PLC0415

    from optuna.exceptions import ExperimentalWarning  # noqa: PLC0415 - heavy
    from optuna.samplers import QMCSampler  # noqa: PLC0415 - heavy

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        return Sampler(QMCSampler(seed=seed, scramble=True, warn_independent_sampling=False))


def _nsga2(seed: int, trials: int, _: Mapping[str, BaseDistribution]) -> Sampler:
    from optuna.samplers import NSGAIISampler  # noqa: PLC0415 - heavy

    return Sampler(NSGAIISampler(seed=seed, population_size=max(4, min(50, trials // 4))), complete_only=True)


def _gp(seed: int, trials: int, _: Mapping[str, BaseDistribution]) -> Sampler:
    try:
        import torch  # type: ignore[import-not-found,unused-ignore]  # noqa: F401, PLC0415 - what GPSampler needs
    except ImportError:
        raise InputError("sampler gp needs torch, which is not installed", "pip install torch, or use tpe") from None
    from optuna.samplers import GPSampler  # noqa: PLC0415 - heavy

    return Sampler(GPSampler(seed=seed, n_startup_trials=min(10, max(3, trials // 4))), complete_only=True)


def _grid(seed: int, trials: int, distributions: Mapping[str, BaseDistribution]) -> Sampler:
    from optuna.samplers import GridSampler  # noqa: PLC0415 - heavy

    class AskedGrid(GridSampler):
        """Optuna's own ends `study.optimize` when the grid is done; asked without it, that call raises."""

        def after_trial(self, *_: object) -> None:
            """Leave the end to whoever asks: a grid that is done proposes what was launched before."""

    grid = AskedGrid(_grid_points(distributions, trials), seed=seed)
    return Sampler(grid, exhausted=grid.is_exhausted)


def _grid_points(distributions: Mapping[str, BaseDistribution], trials: int) -> dict[str, list[Any]]:
    """Every choice, and for ranges as many evenly spaced values as let the grid come near the budget."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: PLC0415

    ranges = [name for name, dist in distributions.items() if not isinstance(dist, CategoricalDistribution)]
    choices = 1
    for dist in distributions.values():
        if isinstance(dist, CategoricalDistribution):
            choices *= len(dist.choices)
    each = max(2, round((trials / choices) ** (1 / len(ranges)))) if ranges else 1
    points: dict[str, list[Any]] = {}
    for name, dist in distributions.items():
        if isinstance(dist, CategoricalDistribution):
            points[name] = list(dist.choices)
        elif isinstance(dist, IntDistribution):
            values = _spaced(dist.low, dist.high, each, log=dist.log)
            points[name] = [*sorted({dist.low + round((v - dist.low) / dist.step) * dist.step for v in values})]
        elif isinstance(dist, FloatDistribution):
            points[name] = list(_spaced(dist.low, dist.high, each, log=dist.log))
    return points


def _spaced(low: float, high: float, count: int, *, log: bool) -> list[float]:
    shares = [index / (count - 1) for index in range(count)]
    if log:
        return [low * (high / low) ** share for share in shares]
    return [low + (high - low) * share for share in shares]


# --- by import path -------------------------------------------------------------------------------------------------


def _imported(spec: SamplerSpec, seed: int) -> Sampler:
    """A sampler of which nothing is known: crashes are told as COMPLETE with the worst value, which all of them see."""
    from optuna.samplers import BaseSampler  # noqa: PLC0415 - heavy

    where, _, name = spec.kind.rpartition(":")
    module = _hub_package(where.removeprefix(f"{HUB}:")) if where.startswith(f"{HUB}:") else _module(where, spec.kind)
    found = getattr(module, name, None)
    if not inspect.isclass(found) or not issubclass(found, BaseSampler):
        raise InputError(f"sampler {spec.kind}: {name} is not an Optuna sampler of {where}", _PATH_ADVICE)
    arguments = dict(spec.kwargs)
    if "seed" not in arguments and "seed" in inspect.signature(found).parameters:
        arguments["seed"] = seed
    try:
        return Sampler(found(**arguments), complete_only=True)
    except (TypeError, ValueError) as error:
        raise InputError(f"sampler {spec.kind} refuses its arguments: {error}", "correct sampler.kwargs") from error
    except ImportError as error:
        raise InputError(f"sampler {spec.kind} needs a package: {error}", "install it beside autotune") from error


_PATH_ADVICE = "give `module:Class` (optuna.samplers:CmaEsSampler) or `optunahub:package:Class`"


def _module(name: str, asked: str) -> ModuleType:
    try:
        return import_module(name)
    except ImportError as error:
        raise InputError(f"sampler {asked}: {error}", f"is it installed beside autotune? {_PATH_ADVICE}") from error


def _hub_package(package: str) -> ModuleType:
    try:
        import optunahub  # type: ignore[import-not-found,unused-ignore]  # noqa: PLC0415 - an extra of the user's
    except ImportError:
        raise InputError(f"sampler {package} is on OptunaHub", "pip install optunahub") from None
    module: ModuleType = optunahub.load_module(package=package)
    return module


_MAKERS: dict[str, Callable[[int, int, Mapping[str, BaseDistribution]], Sampler]] = {
    "auto": _auto,
    "tpe": _tpe,
    "random": _random,
    "qmc": _qmc,
    "nsga2": _nsga2,
    "gp": _gp,
    "grid": _grid,
}
