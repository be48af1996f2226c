"""What a search for the capacity comes to: the objective's figure and the verdict, from levels at many loads.

Most levels were measured where the SLOs fail or hold by far, so they are never all pooled. SLOs are judged where they
have to hold: latencies on the levels at or nearest below the capacity, whatever else (the share of errors) on all those
up to it. Such a level is too short to prove a tail by itself. Where it settles nothing the SLO is said to hold, since
that is how the capacity was found, and the ruling says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log

from autotune import slo
from autotune.models.twin import modelled
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import Capacity, Estimate, LevelRecord, Measurement, Ruling, SloRuling, Verdict
from autotune.trial.crossing import load_of

Measured = Sequence[tuple[LevelRecord, Measurement]]

BESIDE = 0.05  # of ln(load): levels that are taken together with the nearest one
ROUNDING = 1e-6
CAPACITIES = {"capacity_rps": "rps", "capacity_rps_per_gpu": "rps", "capacity_concurrency": "concurrency"}


def beside(levels: Measured, capacity: Capacity) -> Measured:
    """The levels measured at or nearest below the capacity; where there are none, those at the lowest load."""
    below = up_to(levels, capacity)
    at = [load_of(level) for level, _ in below or levels]
    nearest = max(at) if below else min(at)
    return [pair for pair, load in zip(below or levels, at, strict=True) if abs(log(load / nearest)) <= BESIDE]


def up_to(levels: Measured, capacity: Capacity) -> Measured:
    """The levels measured at the capacity or below it."""
    return [pair for pair in levels if load_of(pair[0]) <= capacity.value.value * (1 + ROUNDING)]


def verdict_at(objective: ObjectiveSpec, levels: Measured, capacity: Capacity) -> Verdict:
    """The rulings at the capacity, or at the lowest load where there is none."""
    near = beside(levels, capacity)
    verdict = slo.judge(objective, near)
    below = up_to(levels, capacity)
    if not below:
        return verdict if not capacity.value.value else _unseen(verdict, capacity)
    at = max(load_of(level) for level, _ in near)
    over_all = slo.judge(objective, below)
    rulings = tuple(
        _at(at, capacity, ruling) if modelled(asked) else replace(pooled, why=f"up to the capacity: {pooled.why}")
        for asked, ruling, pooled in zip(objective.slos, verdict.slos, over_all.slos, strict=True)
    )
    return Verdict(slos=rulings, ruling=_worst(rulings), untrusted=verdict.untrusted)


def objective_at(
    objective: ObjectiveSpec, levels: Measured, capacity: Capacity, gpus: int
) -> Estimate | Sequence[Measurement]:
    """The capacity where that is the objective, per GPU if asked; else the measurements to take it from."""
    if objective.metric not in CAPACITIES:
        return [measurement for _, measurement in beside(levels, capacity)]
    value = capacity.value
    by = gpus if objective.metric.endswith("_per_gpu") else 1
    return Estimate(
        value=value.value / by,
        low=None if value.low is None else value.low / by,
        high=None if value.high is None else value.high / by,
        n=value.n,
    )


def _at(load: float, capacity: Capacity, ruling: SloRuling) -> SloRuling:
    """A ruling made at a load up to the capacity."""
    measured = f"at {_told(load, capacity)}: {ruling.why}"
    if ruling.ruling is not Ruling.UNSURE:
        return replace(ruling, why=measured)
    excess = None if ruling.excess is None else min(0.0, ruling.excess)
    held = f"holds up to {_told(capacity.value.value, capacity)} by {capacity.method}; one level settles nothing"
    return replace(ruling, ruling=Ruling.PASS, excess=excess, why=f"{held} ({measured})")


def _unseen(verdict: Verdict, capacity: Capacity) -> Verdict:
    """Every level was run above the capacity: what happened there is no miss of the capacity."""
    why = f"no level was run at or below {_told(capacity.value.value, capacity)}"
    rulings = tuple(replace(each, ruling=Ruling.UNSURE, why=why) for each in verdict.slos)
    return Verdict(slos=rulings, ruling=Ruling.UNSURE, untrusted=verdict.untrusted)


def _told(load: float, capacity: Capacity) -> str:
    return f"{load:.4g} {'req/s' if capacity.of == 'rps' else 'clients'}"


def _worst(rulings: Sequence[SloRuling]) -> Ruling:
    found = {each.ruling for each in rulings}
    return next((worst for worst in (Ruling.FAIL, Ruling.UNSURE) if worst in found), Ruling.PASS)
