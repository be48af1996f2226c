"""Optuna samplers by the study file's names, and what each of them learns from a candidate that could not run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.errors import InputError
from autotune.records.spec import SamplerSpec

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.samplers import BaseSampler
    from optuna.study import Study


@dataclass(frozen=True, slots=True)
class Sampler:
    """A sampler; whether it learns from COMPLETE trials alone, then crashes must be told as such; and whether it has
    proposed all that it ever will."""

    sampler: BaseSampler
    complete_only: bool = False
    exhausted: Callable[[Study], bool] = lambda _: False


def make_sampler(
    spec: SamplerSpec, *, seed: int, trials: int, distributions: Mapping[str, BaseDistribution]
) -> Sampler:
    """Return the sampler that a study file names.

    `trials`: the budget, from which TPE's random start is sized. Raises InputError when a sampler needs a package
    that is not installed.
    """
    return _MAKERS[spec.kind](seed, trials, distributions)


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


_MAKERS: dict[str, Callable[[int, int, Mapping[str, BaseDistribution]], Sampler]] = {
    "auto": _tpe,
    "tpe": _tpe,
    "random": _random,
    "qmc": _qmc,
    "nsga2": _nsga2,
    "gp": _gp,
    "grid": _grid,
}
