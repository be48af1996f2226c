"""Parameters as numbers: where a candidate stands in a unit cube, and which values a parameter may be moved to."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from autotune.records.spec import ParamValue

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution

Floats = NDArray[np.float64]

INACTIVE = 0.5  # where a parameter stands that a candidate lacks: its parent's value tells such candidates apart
STEPS = 4  # values of a range that a candidate is moved to, beside its neighbours
NUMBER_SCALE, SWITCH_SCALE = 0.9, 1.6
"""Length-scales in units of the cube: numbers act smoothly over their range, switches by themselves less than often."""
NUMBER_FLOOR, SWITCH_FLOOR = 0.2, 0.6
"""The least relevance, over the greatest. A switch whose effect the simulator lacks must stay visible."""
SPLITS = ("parallel_size",)  # endings of names that, like kernels by name, change every time of the engine


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One parameter. `values`: all of a choice, in order of size where they have one; () for a range."""

    name: str
    values: tuple[ParamValue, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False
    step: float | None = None
    whole: bool = False

    @property
    def is_switch(self) -> bool:
        """Whether each value stands for itself."""
        return bool(self.values) and (len(self.values) == 2 or isinstance(self.values[0], str))

    @property
    def is_structural(self) -> bool:
        """Whether it decides which kernels run, so that little of what was learned holds for another value."""
        return bool(self.values) and (isinstance(self.values[0], str) or self.name.endswith(SPLITS))

    def place(self, value: ParamValue) -> float:
        """Return where a value stands between 0 and 1."""
        if self.values:
            return self.values.index(value) / max(1, len(self.values) - 1)
        number = float(value)
        low, high = self.low, self.high
        if self.log:
            number, low, high = (math.log(each) for each in (number, low, high))
        return (number - low) / (high - low) if high > low else 0.0

    def at(self, share: float) -> ParamValue:
        """Return the value of a range nearest to a place."""
        share = min(max(share, 0.0), 1.0)
        low, high = self.low, self.high
        value = low * (high / low) ** share if self.log else low + share * (high - low)
        step = self.step or (1.0 if self.whole else None)
        if step is not None:
            value = min(low + round((value - low) / step) * step, high)
        return round(value) if self.whole else round(value, 12)

    def moves(self, value: ParamValue | None) -> tuple[ParamValue, ...]:
        """Return other values: all of a choice, a range's evenly spaced ones and those close by."""
        if self.values:
            return tuple(other for other in self.values if other != value)
        here = [] if value is None else [self.place(value) + delta for delta in (-0.07, 0.07)]
        shares = [*(index / STEPS for index in range(STEPS + 1)), *(s for s in here if 0 <= s <= 1)]
        return tuple(dict.fromkeys(other for share in shares if (other := self.at(share)) != value))


def axis_of(name: str, dist: BaseDistribution) -> Axis:
    """Return the axis of an Optuna distribution."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: PLC0415

    if isinstance(dist, CategoricalDistribution):
        return Axis(name=name, values=_in_order(dist.choices))
    assert isinstance(dist, IntDistribution | FloatDistribution)  # noqa: S101 - Optuna has no others
    return Axis(
        name=name,
        low=float(dist.low),
        high=float(dist.high),
        log=dist.log,
        step=None if dist.step is None or dist.log else float(dist.step),
        whole=isinstance(dist, IntDistribution),
    )


def _in_order(choices: Sequence[object]) -> tuple[ParamValue, ...]:
    values = [value for value in choices if isinstance(value, bool | int | float | str)]
    numbers = all(not isinstance(value, str) for value in values)
    return tuple(sorted(values, key=float)) if numbers else tuple(values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoding:
    """The axes of a space, in a fixed order."""

    axes: tuple[Axis, ...]

    @property
    def scales(self) -> Floats:
        """Length-scales of a space of which nothing else is known."""
        return np.array([SWITCH_SCALE if axis.is_switch else NUMBER_SCALE for axis in self.axes])

    @property
    def floors(self) -> Floats:
        """The least relevance of each axis."""
        return np.array([SWITCH_FLOOR if axis.is_switch else NUMBER_FLOOR for axis in self.axes])

    @property
    def switches(self) -> NDArray[np.bool_]:
        """Which axes have values that stand for themselves."""
        return np.array([axis.is_switch or axis.is_structural for axis in self.axes], dtype=np.bool_)

    @property
    def structural(self) -> NDArray[np.bool_]:
        """Which axes are structural."""
        return np.array([axis.is_structural for axis in self.axes], dtype=np.bool_)

    def features(self, several: Sequence[Mapping[str, ParamValue]]) -> Floats:
        """Return a row of the unit cube for each set of parameters."""
        rows = [[_placed(axis, params) for axis in self.axes] for params in several]
        return np.array(rows, dtype=np.float64).reshape(len(several), len(self.axes))


def _placed(axis: Axis, params: Mapping[str, ParamValue]) -> float:
    value = params.get(axis.name)
    known = value is not None and (not axis.values or value in axis.values)
    return axis.place(value) if known and value is not None else INACTIVE


def encoding_of(distributions: Mapping[str, BaseDistribution]) -> Encoding:
    """Return the encoding of a space by Optuna's distributions of all its parameters."""
    return Encoding(axes=tuple(axis_of(name, dist) for name, dist in distributions.items()))
