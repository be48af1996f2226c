"""How often finals err: whether the gain they state covers the true one, and what they hand over (docs/finals.md).

python -m benchmarks.statistics.winner [--studies 200] [--seed 1]

The finals are the product's own (`autotune.search.finals`); engines are drawn from a distribution whose truth is known.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from autotune.records.finals import FinalRun
from autotune.records.spec import (
    Direction,
    EngineKind,
    EngineSpec,
    FinalsSpec,
    LoadSpec,
    ObjectiveSpec,
    SpaceSpec,
    StudySpec,
    WorkloadSpec,
)
from autotune.records.trial import Estimate, Outcome, Role, TrialRecord
from autotune.search.finals import Finals, finals_of
from autotune.search.winner import ranking, reference_of

SEARCHED = 39  # launches of a search, beside the reference
WITHIN_SD = 0.01  # of a figure inside one launch: what its interval tells
COLUMNS = ("truth, noise", "covers below", "covers", "search claims", "reference kept", "worse", "lost", "launches")
Noise = Callable[[np.random.Generator, float], float]
"""A launch's deviation of the logarithm, given the standard deviation."""


def normal(rng: np.random.Generator, sd: float) -> float:
    return float(rng.normal(0, sd))


def modes(rng: np.random.Generator, sd: float) -> float:
    """A fast and a slow placement, as threads or memory fall; three in four are fast."""
    return (0.5 if rng.random() < 0.75 else -1.5) * sd / math.sqrt(0.75)


def stragglers(rng: np.random.Generator, sd: float) -> float:
    """One launch in twenty is 10 % slower for reasons of its own."""
    return float(rng.normal(0, sd)) - (0.1 if rng.random() < 0.05 else 0.0)


def clear(rng: np.random.Generator) -> np.ndarray:
    """Logarithms of the true ratios to the reference: spread out, the best some 20 % better."""
    return np.sort(rng.normal(-0.1, 0.15, SEARCHED))


def crowded(rng: np.random.Generator) -> np.ndarray:
    """A search that came near the optimum many times: ten within 2 %, 10 % better than the reference."""
    return np.concatenate([rng.normal(-0.1, 0.1, SEARCHED - 10), 0.10 - rng.uniform(0, 0.02, 10)])


def none_better(rng: np.random.Generator) -> np.ndarray:
    """The reference is as good as anything."""
    return np.minimum(0.0, rng.normal(-0.03, 0.05, SEARCHED))


TRUTHS = {"clear": clear, "crowded": crowded, "none better": none_better}
NOISES: dict[str, Noise] = {"normal": normal, "modes": modes, "stragglers": stragglers}


class Ended(NamedTuple):
    """Of one study: logarithms of the true gain, of the gain's bounds, of the gain that the search would have claimed
    and its true one, of the best there was; launches in the finals."""

    true: float
    low: float
    high: float
    claimed: float
    claimed_true: float
    best: float
    launches: int
    reference: bool


@dataclass(slots=True)
class Engine:
    """What a launch gives: the truth, what this launch adds, and a drift with time that rounds have in common."""

    truth: np.ndarray
    rng: np.random.Generator
    noise: Noise
    sd: float
    drift: float
    launches: int = 0

    def figure(self, number: int) -> Estimate:
        """The figure of configuration `number`; 0 is the reference. Only what varies inside a launch is told."""
        self.launches += 1
        log = (self.truth[number - 1] if number else 0.0) + self.noise(self.rng, self.sd) + self.drift * self.launches
        value = 1000 * math.exp(log + self.rng.normal(0, WITHIN_SD))
        return Estimate(value=value, low=value * (1 - 2 * WITHIN_SD), high=value * (1 + 2 * WITHIN_SD), n=1000)


def spec_of(asked: FinalsSpec, confidence: float) -> StudySpec:
    objective = ObjectiveSpec(
        name="o",
        metric="output_tok_per_s",
        direction=Direction.MAXIMIZE,
        slos=(),
        workload=WorkloadSpec(),
        load=LoadSpec(concurrency=1),
        confidence=confidence,
    )
    space = SpaceSpec(name="s", engine=EngineKind.VLLM, parameters=())
    engine = EngineSpec(kind=EngineKind.SIMULATED)
    return StudySpec(name="s", model="m", engine=engine, search_space=space, objective=objective, finals=asked)


def record(number: int, figure: Estimate, of: int, final: FinalRun | None = None) -> TrialRecord:
    role = Role.FINAL if final else Role.SEARCH if of else Role.REFERENCE
    return TrialRecord(
        study="s",
        number=number,
        role=role,
        simulated=True,
        params={},
        args={} if of == 0 else {"x": of},
        fingerprint=str(of),
        model="m",
        outcome=Outcome.OK,
        objective=figure,
        started_utc="",
        seed=1,
        final=final,
    )


def study(spec: StudySpec, engine: Engine) -> Ended:
    """Search, then finals as the product runs them."""
    records = [record(n, engine.figure(n), n) for n in range(SEARCHED + 1)]
    finals = finals_of(spec, records)
    while finals is not None and finals.next is not None:
        run = finals.next
        records.append(record(len(records), engine.figure(run.of), run.of, run))
        finals = finals_of(spec, records)
    return ended(spec, engine.truth, records, finals)


def ended(spec: StudySpec, truth: np.ndarray, records: Sequence[TrialRecord], finals: Finals | None) -> Ended:
    searched = records[: SEARCHED + 1]
    first, reference = ranking(searched, spec.objective)[0], reference_of(searched)
    assert reference is not None
    assert first.objective is not None
    assert reference.objective is not None
    claimed = math.log(first.objective.value / reference.objective.value)
    ratio = finals.look.ratio(finals.winner, 0) if finals is not None and finals.winner else None
    low, high = (0.0, 0.0) if ratio is None else (math.log(ratio.low or 1e-9), math.log(ratio.high or 1e9))
    winner = 0 if finals is None else finals.winner or 0
    return Ended(
        true=float(truth[winner - 1]) if winner else 0.0,
        low=low,
        high=high,
        claimed=claimed,
        claimed_true=float(truth[first.number - 1]) if first.number else 0.0,
        best=max(0.0, float(truth.max())),
        launches=len(records) - SEARCHED - 1,
        reference=winner == 0,
    )


def row(name: str, found: Sequence[Ended]) -> str:
    low = f"{np.mean([e.reference or e.low <= e.true for e in found]):.1%}"  # who keeps the reference claims no gain
    both = f"{np.mean([e.reference or e.low <= e.true <= e.high for e in found]):.1%}"
    search = f"{np.mean([math.exp(e.claimed) - math.exp(e.claimed_true) for e in found]):+.1%}"
    worse = f"{np.mean([e.true < 0 for e in found]):.1%}"
    lost = f"{np.mean([1 - math.exp(e.true - e.best) for e in found]):.1%}"
    kept = f"{np.mean([e.reference for e in found]):.0%}"
    launches = f"{np.mean([e.launches for e in found]):.1f}"
    return f"| {name} | {low} | {both} | {search} | {kept} | {worse} | {lost} | {launches} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--studies", type=int, default=200, help="simulated studies a row")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--confidence", type=float, default=0.95)
    parser.add_argument("--truth", choices=TRUTHS, help="only this one")
    given = parser.parse_args()
    spec = spec_of(FinalsSpec(soak_s=0), given.confidence)
    print(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
    for truth_name in [given.truth] if given.truth else TRUTHS:
        truth = TRUTHS[truth_name]
        for noise_name, noise in NOISES.items():
            for sd in (0.005, 0.015, 0.03, 0.06):
                rng = np.random.default_rng([given.seed, int(sd * 1000)])
                found = [
                    study(spec, Engine(truth=truth(rng), rng=rng, noise=noise, sd=sd, drift=rng.normal(0, 0.001)))
                    for _ in range(given.studies)
                ]
                print(row(f"{truth_name}, {sd:.1%} {noise_name}", found), flush=True)


if __name__ == "__main__":
    main()
