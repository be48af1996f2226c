"""Which parameters mattered: PED-ANOVA over the measured trials, or why that can't be told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution

from autotune.records.spec import Choice, Direction, Domain, FloatRange, ParamValue, StudySpec
from autotune.records.trial import TrialRecord

ENOUGH_TRIALS = 20
"""A quarter of them are the top group, and PED-ANOVA's own note asks for at least five there."""

TOP_RATIO = 0.25


def importances(spec: StudySpec, trials: Sequence[TrialRecord]) -> Mapping[str, float] | str:
    """Return each parameter's share (they sum to 1) in reaching the best quarter of objective values.

    Returns why instead when the trials don't tell. Only trials that were measured count, so a parameter that decides
    whether the engine runs at all is not credited for that. Source: PED-ANOVA, Watanabe et al., IJCAI 2023.
    """
    measured = [trial for trial in trials if trial.objective is not None and trial.params and trial.final is None]
    if len(measured) < ENOUGH_TRIALS:
        return f"too few trials to tell: {len(measured)} were measured, {ENOUGH_TRIALS} are needed"
    shares = _ped_anova(_as_study(spec, measured))
    if not shares or sum(shares.values()) <= 0:
        return "the measured trials don't tell the parameters apart"
    return shares


def _ped_anova(study: optuna.Study) -> Mapping[str, float]:
    evaluator = optuna.importance.PedAnovaImportanceEvaluator(target_quantile=TOP_RATIO)
    return optuna.importance.get_param_importances(study, evaluator=evaluator)


def _as_study(spec: StudySpec, trials: Sequence[TrialRecord]) -> optuna.Study:
    """The records as a study in memory: the truth is `trial.json`, not the storage."""
    maximize = spec.objective.direction is Direction.MAXIMIZE
    with _quiet():
        study = optuna.create_study(direction="maximize" if maximize else "minimize")
    domains = {parameter.name: parameter.domain for parameter in spec.search_space.parameters}
    for trial in trials:
        inside = {name: value for name, value in trial.params.items() if _holds(domains.get(name), value)}
        value = trial.objective.value if trial.objective else None
        study.add_trial(
            optuna.trial.create_trial(
                params=inside, distributions={name: _distribution(domains[name]) for name in inside}, value=value
            )
        )
    return study


@contextmanager
def _quiet() -> Iterator[None]:
    """Optuna logs each new study, this one for the page's own use too."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


def _distribution(domain: Domain) -> BaseDistribution:
    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain, FloatRange):
        return FloatDistribution(domain.low, domain.high, log=domain.log, step=None if domain.log else domain.step)
    return IntDistribution(domain.low, domain.high, log=domain.log, step=1 if domain.log else domain.step)


def _holds(domain: Domain | None, value: ParamValue) -> bool:
    """The reference's values may lie outside the space."""
    if domain is None:
        return False
    if isinstance(domain, Choice):
        return value in domain.values
    return isinstance(value, int | float) and domain.low <= value <= domain.high
