"""What can be asked at all: legal candidates drawn from the space, and what lies a step or two from one of them."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, cast

from autotune.records.spec import Args, ParamValue
from autotune.records.trial import Candidate
from autotune.search.auto.encoding import Encoding

if TYPE_CHECKING:
    import optuna
    from optuna.distributions import BaseDistribution

    from autotune.space import RuledOut

DRAWN = 96  # candidates drawn at random: a set in which a climb finds a good place to begin
TRIES = 12  # draws a candidate, where rules refuse many
ENUMERABLE = 400  # spaces with so few combinations are listed whole
Params = Mapping[str, ParamValue]


class Asks(Protocol):
    """A search space, of one engine or of several: fills in whatever of a trial is asked for."""

    def suggest(self, trial: optuna.Trial) -> Candidate | RuledOut:
        """Ask `trial` for the active parameters; return a candidate, or why it is none."""
        ...

    def distributions(self) -> dict[str, BaseDistribution]:
        """Return Optuna's distribution of every parameter."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """A legal candidate: what Optuna is told, and what the engine is given. `key`: equal for equal parameters."""

    params: Params
    args: Args

    @property
    def key(self) -> tuple[tuple[str, ParamValue], ...]:
        """Hashable, the same for the same parameters; True is not 1."""
        return key_of(self.params)


def key_of(params: Params) -> tuple[tuple[str, ParamValue], ...]:
    """Return parameters as a key; a stepped float is 0.8600000000000001 in a storage."""
    items = ((name, round(v, 9) if isinstance(v, float) else v) for name, v in params.items())
    return tuple(sorted((name, str(v) if isinstance(v, bool) else v) for name, v in items))


@dataclass(frozen=True, slots=True)
class _Filled:
    """What a space asks of an Optuna trial, answered from `params`, else by `draw`."""

    params: Params
    draw: Callable[[str], ParamValue]

    def suggest_categorical(self, name: str, choices: Sequence[ParamValue]) -> ParamValue:
        value = self.params.get(name)
        return value if value is not None and value in choices else self.draw(name)

    def suggest_int(self, name: str, low: float, high: float, **_: object) -> ParamValue:
        value = self.params.get(name)
        inside = isinstance(value, int | float) and low <= value <= high
        return value if inside and value is not None else self.draw(name)

    suggest_float = suggest_int


@dataclass(slots=True)
class Candidates:
    """Legal candidates of a space, and how they are varied."""

    space: Asks
    encoding: Encoding
    _made: dict[tuple[tuple[str, ParamValue], ...], Option | None] = field(default_factory=dict)

    def legal(self, params: Params, rng: random.Random) -> Option | None:
        """Return the candidate with `params`, active ones that they lack drawn by `rng`; None when a rule refuses."""
        key = key_of(params)
        if key not in self._made:
            option = self._filled(params, rng)
            if option is not None and option.key != key:
                return option  # what was drawn may be drawn otherwise the next time
            self._made[key] = option
        return self._made[key]

    def _filled(self, params: Params, rng: random.Random) -> Option | None:
        trial = _Filled(params, lambda name: self._draw(name, rng))
        found = self.space.suggest(cast("optuna.Trial", trial))
        return Option(params=found.params, args=found.args) if isinstance(found, Candidate) else None

    def _draw(self, name: str, rng: random.Random) -> ParamValue:
        axis = next(axis for axis in self.encoding.axes if axis.name == name)
        return rng.choice(axis.values) if axis.values else axis.at(rng.random())

    def drawn(self, rng: random.Random, count: int = DRAWN) -> list[Option]:
        """Return up to `count` different legal candidates; all there are, where they can be listed."""
        if self.size <= ENUMERABLE:
            return self._all(rng)
        found: dict[object, Option] = {}
        for _ in range(TRIES * count):
            if len(found) == count:
                break
            if (option := self._filled({}, rng)) is not None:
                found.setdefault(option.key, option)
        return list(found.values())

    @property
    def size(self) -> float:
        """How many combinations there are, illegal ones included; infinite with a continuous range."""
        return math.prod(_count(axis.values, axis.low, axis.high, axis.step, axis.whole) for axis in self.encoding.axes)

    def _all(self, rng: random.Random) -> list[Option]:
        axes = self.encoding.axes
        each = [axis.values or tuple(_steps(axis.low, axis.high, axis.step)) for axis in axes]
        values = [tuple(int(v) if axis.whole else v for v in vs) for axis, vs in zip(axes, each, strict=True)]
        names = [axis.name for axis in axes]
        rows = (dict(zip(names, row, strict=True)) for row in itertools.product(*values))
        options = (option for params in rows if (option := self._filled(params, rng)) is not None)
        return list({option.key: option for option in options}.values())

    def beside(self, params: Params, rng: random.Random) -> list[Option]:
        """Return every legal candidate that differs in one parameter (and in what comes and goes with it)."""
        return [option for index in range(len(self.encoding.axes)) for option in self.moved(params, index, rng)]

    def moved(self, params: Params, index: int, rng: random.Random) -> list[Option]:
        """Return the legal candidates that differ in the parameter of one axis; none where it is inactive."""
        axis = self.encoding.axes[index]
        if axis.name not in params:
            return []
        several = ({**params, axis.name: value} for value in axis.moves(params[axis.name]))
        return [option for changed in several if (option := self.legal(changed, rng)) is not None]

    def astray(self, params: Params, rng: random.Random, count: int, moved: int = 2) -> list[Option]:
        """Return legal candidates that differ in `moved` random parameters."""
        axes = [axis for axis in self.encoding.axes if axis.name in params]
        found = []
        for _ in range(count):
            changed = dict(params)
            for axis in rng.sample(axes, min(moved, len(axes))):
                values = axis.moves(changed.get(axis.name))
                changed |= {axis.name: rng.choice(values)} if values else {}
            if (option := self.legal(changed, rng)) is not None:
                found.append(option)
        return found


def unique(options: Iterable[Option]) -> list[Option]:
    """Return options once each, in order."""
    return list({option.key: option for option in options}.values())


def _count(values: tuple[ParamValue, ...], low: float, high: float, step: float | None, whole: bool) -> float:
    if values:
        return len(values)
    spacing = step or (1.0 if whole else None)
    return math.inf if spacing is None else math.floor((high - low) / spacing + 1e-6) + 1


def _steps(low: float, high: float, step: float | None) -> Iterator[float]:
    spacing = step or 1.0
    return (round(low + i * spacing, 12) for i in range(math.floor((high - low) / spacing + 1e-6) + 1))
