"""What values a parameter may take: membership, narrowing, drawing, and the bridge to Optuna's distributions."""

from __future__ import annotations

import ast
import math
import random
from collections.abc import Mapping
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING

from autotune.records.spec import Choice, Domain, FloatRange, IntRange, ParamValue
from autotune.space.expression import Expression

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

_ROUNDING = 1e-6  # of a step: where a value counts as on the grid


def narrowed(domain: Domain, rule: Expression, name: str, env: Mapping[str, object]) -> Domain | None:
    """Return the part of `domain` that can obey `rule`, whose only unknown is `name`; None when nothing can.

    Choices are tried one by one; of a range, the ends that a comparison cuts off go. Raises ExpressionError.
    """
    if isinstance(domain, Choice):
        values = tuple(value for value in domain.values if rule.holds({**env, name: value}))
        return replace(domain, values=values) if values else None
    low, high = float(domain.low), float(domain.high)
    for comparison, bound in rule.bounds(name, env):
        if comparison in (ast.GtE, ast.Gt, ast.Eq):
            low = max(low, _above(bound, domain) if comparison is ast.Gt else bound)
        if comparison in (ast.LtE, ast.Lt, ast.Eq):
            high = min(high, _below(bound, domain) if comparison is ast.Lt else bound)
    return _between(domain, low, high)


def _above(bound: float, domain: Domain) -> float:
    return math.floor(bound) + 1 if isinstance(domain, IntRange) else bound


def _below(bound: float, domain: Domain) -> float:
    return math.ceil(bound) - 1 if isinstance(domain, IntRange) else bound


def _between(domain: IntRange | FloatRange, low: float, high: float) -> Domain | None:
    """Return the part of a range within low..high, on its own grid."""
    if isinstance(domain, IntRange):
        first = domain.low + math.ceil((max(low, domain.low) - domain.low) / domain.step) * domain.step
        last = domain.low + math.floor((min(high, domain.high) - domain.low) / domain.step) * domain.step
        return replace(domain, low=first, high=last) if first <= last else None
    low, high = max(low, domain.low), min(high, domain.high)
    if domain.step is not None:
        low = _grid(domain, math.ceil((low - domain.low) / domain.step - _ROUNDING))
        high = _grid(domain, math.floor((high - domain.low) / domain.step + _ROUNDING))
    return replace(domain, low=low, high=high) if low <= high else None


def _grid(domain: FloatRange, steps: int) -> float:
    """Return the value `steps` above the low end, as people write it: 0.95, not 0.9500000000000001."""
    return float(Decimal(str(domain.low)) + steps * Decimal(str(domain.step or 0)))


def _snapped(domain: FloatRange, value: float) -> float:
    return value if domain.step is None else _grid(domain, round((value - domain.low) / domain.step))


def on_grid(domain: Domain) -> Domain:
    """Return the domain with its upper end on the grid that its step makes."""
    if isinstance(domain, Choice):
        return domain
    return _between(domain, domain.low, domain.high) or domain


def only_value(domain: Domain) -> ParamValue | None:
    """Return the value of a domain that has just one, else None."""
    if isinstance(domain, Choice):
        return domain.values[0] if len(domain.values) == 1 else None
    return domain.low if domain.low == domain.high else None


def member(domain: Domain, value: object) -> ParamValue | None:
    """Return `value` as the member of `domain` that it equals, None when it is none. True is not 1 here."""
    if isinstance(domain, Choice):
        return next(
            (own for own in domain.values if own == value and isinstance(own, bool) is isinstance(value, bool)), None
        )
    if isinstance(value, bool) or not isinstance(value, int | float) or not domain.low <= value <= domain.high:
        return None
    if isinstance(domain, IntRange):
        whole = int(value)
        return whole if whole == value and (whole - domain.low) % domain.step == 0 else None
    near = _snapped(domain, float(value))
    return near if abs(near - value) <= _ROUNDING * (domain.step or 1) else None


def distribution(domain: Domain) -> BaseDistribution:
    """Return Optuna's distribution of the domain."""
    from optuna.distributions import (  # noqa: PLC0415 - heavy
        CategoricalDistribution,
        FloatDistribution,
        IntDistribution,
    )

    if isinstance(domain, Choice):
        return CategoricalDistribution(domain.values)
    if isinstance(domain, IntRange):
        return IntDistribution(domain.low, domain.high, log=domain.log, step=domain.step)
    return FloatDistribution(domain.low, domain.high, log=domain.log, step=domain.step)


def ask(trial: optuna.Trial, name: str, domain: Domain) -> ParamValue:
    """Return the value that an Optuna trial proposes."""
    if isinstance(domain, Choice):
        chosen = trial.suggest_categorical(name, domain.values)
        return next(own for own in domain.values if own == chosen)
    if isinstance(domain, IntRange):
        return trial.suggest_int(name, domain.low, domain.high, log=domain.log, step=domain.step)
    return _snapped(domain, trial.suggest_float(name, domain.low, domain.high, log=domain.log, step=domain.step))


def draw(domain: Domain, rng: random.Random, *, ends_ratio: float = 0.0) -> ParamValue:
    """Return a random member; with probability `ends_ratio` an end of a range, where rules are decided."""
    if isinstance(domain, Choice):
        return rng.choice(domain.values)
    at_end = rng.random() < ends_ratio
    share = float(rng.random() < 0.5) if at_end else rng.random()
    value = _at(domain, share)
    if isinstance(domain, IntRange):
        return min(domain.high, domain.low + round((value - domain.low) / domain.step) * domain.step)
    return min(domain.high, max(domain.low, _snapped(domain, value)))


def _at(domain: IntRange | FloatRange, share: float) -> float:
    if domain.log:
        return float(domain.low * (domain.high / domain.low) ** share)
    return domain.low + share * (domain.high - domain.low)
