"""The feasible optimum of each landscape, by a long search on the truth: `data/optima.json`, with seed and command.

    python -m benchmarks.search.optima [NAME@MACHINE …]      # these, else those missing; two minutes each

Candidates are drawn at random and measured; from the best of them, one parameter at a time is changed for as long as
the truth gets better. The table warns when a strategy has found better since.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from optuna.trial import FixedTrial

from autotune.records.spec import Choice, FloatRange, ParamValue
from autotune.records.trial import Candidate
from autotune.space import RuledOut, Space
from autotune.space.space import Parameter
from benchmarks.search.evaluation import Measured, measure, truth
from benchmarks.search.landscapes import NAMES, Landscape, Machine, landscape

FILE = Path(__file__).parent / "data" / "optima.json"
SEED = 20_260_101
DRAWN, CLIMBS, SWEEPS = 600, 5, 4
BETTER = 1.001  # by less, a step is not worth another sweep
HOLDS = 1e-9  # of the excess over a limit
FACTORS = (0.5, 0.7, 0.84, 0.92, 1.09, 1.19, 1.41, 2.0)  # steps of whole numbers
STEPS = (-6, -3, -2, -1, 1, 2, 3, 6)  # of a float's own step
MACHINES = (Machine.SAME, Machine.CONSTANTS, Machine.STRUCTURAL)

Params = Mapping[str, ParamValue]


def optimum_of(hill: Landscape) -> float:
    """Return the best true value known of a landscape. Raises KeyError where none was searched yet."""
    return float(_stored()[hill.name]["value"])


def has_optimum(name: str) -> bool:
    """Whether a landscape's optimum was searched."""
    return name in _stored()


@cache
def _stored() -> dict[str, Any]:
    stored: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    return stored


def candidate_in(space: Space, params: Params) -> Candidate | None:
    """Return the candidate of `params`, those that are inactive left out; None where a rule forbids it."""
    found = space.suggest(FixedTrial(params))  # type: ignore[arg-type]
    return None if isinstance(found, RuledOut) else found


def best_of(hill: Landscape) -> tuple[float, Params]:
    """Search a landscape's optimum: its value, and where it lies."""
    rng = random.Random(SEED)
    climber = _Climber(hill=hill, known={})
    starts = sorted(_drawn(hill, rng), key=lambda start: -start[0])[:CLIMBS]
    tops = [climber.climb(params) for _, params in starts]
    return max(tops, key=lambda top: top[0])


def _drawn(hill: Landscape, rng: random.Random) -> Iterator[tuple[float, Params]]:
    for _ in range(DRAWN):
        found = hill.space.sample(rng)
        if not isinstance(found, RuledOut):
            yield _worth(measure(hill, found.args, SEED)), {**_lowest(hill), **found.params}


def _lowest(hill: Landscape) -> Params:
    """A value for every parameter, which stands in for one that is inactive."""
    return {p.name: p.domain.values[0] if isinstance(p.domain, Choice) else p.domain.low for p in hill.space.dimensions}


def _worth(found: Measured) -> float:
    """The objective; below 0, by how much, where an SLO is missed; nothing is worse than to break."""
    if found.value is None:
        return -1e6
    missed = sum(max(0.0, x) for x in found.excess.values())
    return -missed if missed > HOLDS else found.value


@dataclass(slots=True, kw_only=True)
class _Climber:
    hill: Landscape
    known: dict[str, float]

    def climb(self, params: Params) -> tuple[float, Params]:
        """Change one parameter at a time for as long as it helps."""
        best = self.worth(params)
        for _ in range(SWEEPS):
            before = best
            for parameter in self.hill.space.dimensions:
                for value in moves(parameter, params[parameter.name]):
                    changed = {**params, parameter.name: value}
                    if (worth := self.worth(changed)) > best:
                        best, params = worth, changed
            if best <= before * BETTER:
                break
        return best, params

    def worth(self, params: Params) -> float:
        candidate = candidate_in(self.hill.space, params)
        if candidate is None:
            return -1e9
        if candidate.fingerprint not in self.known:
            self.known[candidate.fingerprint] = _worth(truth(self.hill, candidate.args))
        return self.known[candidate.fingerprint]


def moves(parameter: Parameter, value: ParamValue) -> Sequence[ParamValue]:
    """Other values of a parameter: all of a choice, some to both sides of a number."""
    domain = parameter.domain
    if isinstance(domain, Choice):
        return [other for other in domain.values if other != value]
    if isinstance(domain, FloatRange):
        steps = [round(float(value) + step * (domain.step or 0.01), 9) for step in STEPS]
        return [min(max(other, domain.low), domain.high) for other in steps]
    return [min(max(round(int(value) * factor), domain.low), domain.high) for factor in FACTORS]


def _searched(name: str) -> tuple[str, dict[str, Any]]:
    value, params = best_of(landscape(name))
    return name, {"value": value, "params": params}


def main(argv: Sequence[str]) -> int:
    stored = dict(_stored())
    names = argv or [n for name in NAMES for m in MACHINES if (n := f"{name}@{m}") not in stored]
    with ProcessPoolExecutor(2) as pool:
        for name, found in pool.map(_searched, names):
            stored[name] = {**found, "seed": SEED, "command": f"python -m benchmarks.search.optima {name}"}
            print(name, f"{found['value']:.5g}", found["params"], flush=True)
            draft = FILE.with_suffix(".tmp")
            draft.write_text(json.dumps(stored, indent=1, sort_keys=True) + "\n", encoding="utf-8")
            draft.replace(FILE)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
