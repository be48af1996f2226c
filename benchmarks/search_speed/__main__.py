"""python -m benchmarks.search_speed [--trials 30] [--many 1000] [--asks 40]: the tuner's own time, on this machine.

The first table runs studies/quickstart.yaml on the simulated engine and counts what `Search` takes (prior, fits,
choices, Optuna's storage), not the engine, the measuring or the judging. The second fills a study with scripted records
and times ask + tell from there on.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from autotune import space
from autotune.engines.base import engine_for
from autotune.pipeline import gpus_of, read_study
from autotune.records.spec import BudgetSpec, StudySpec
from autotune.records.trial import Candidate, Estimate, Outcome, Role, TrialRecord
from autotune.search.study import Search
from autotune.trial.run import TrialSetting, blank_record, run_trial
from autotune.trial.store import RunDirectory

QUICKSTART = Path(__file__).parents[2] / "studies" / "quickstart.yaml"


@dataclass(slots=True)
class Clock:
    """Seconds spent inside it, call by call."""

    spent_s: list[float] = field(default_factory=list)
    _begun_s: float = 0.0

    def __enter__(self) -> Self:
        self._begun_s = time.perf_counter()
        return self

    def __exit__(self, *_: object) -> None:
        self.spent_s.append(time.perf_counter() - self._begun_s)


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=30)
    parser.add_argument("--many", type=int, default=1000)
    parser.add_argument("--asks", type=int, default=40)
    asked = parser.parse_args()
    spec = read_study(QUICKSTART)
    with tempfile.TemporaryDirectory() as folder:
        quickstart(replace(spec, budget=BudgetSpec(trials=asked.trials)), Path(folder) / "a")
        at_many(replace(spec, budget=BudgetSpec(trials=10 * asked.many)), Path(folder) / "b", asked.many, asked.asks)


def quickstart(spec: StudySpec, folder: Path) -> None:
    """A whole study: what the search took in all, and its longest choice."""
    engine, run = engine_for(spec), RunDirectory(folder)
    run.path.mkdir(parents=True)
    candidates = space.build_space(spec, gpus=1)
    setting = TrialSetting(spec=spec, engine=engine, run=run, gpus=gpus_of(spec))
    clock = Clock()
    with clock:
        search = Search(spec, candidates, run.storage_url)
    reference = run_trial(setting, candidates.reference(None), 0, _silent)
    with clock:
        search.tell(reference)
    launched, began_s = 1, time.perf_counter()
    while launched < spec.budget.trials:
        with clock:
            proposal = search.ask()
        if proposal is None:
            break
        if proposal.candidate is None:
            search.forget(proposal.number)
            continue
        record = run_trial(setting, proposal.candidate, proposal.number, _silent)
        launched += 1
        with clock:
            search.tell(record)
    print(f"quickstart: {launched} launches, {time.perf_counter() - began_s:.1f} s in all")
    print(f"  search {sum(clock.spent_s):.2f} s in all, the longest step {max(clock.spent_s):.2f} s")


def at_many(spec: StudySpec, folder: Path, many: int, asks: int) -> None:
    """Ask + tell once a study holds `many` trials."""
    run = RunDirectory(folder)
    run.path.mkdir(parents=True)
    candidates = space.build_space(spec, gpus=1)
    setting = TrialSetting(spec=spec, engine=engine_for(spec), run=run, gpus=("0",))
    rng = np.random.default_rng(1)
    records = [_scripted(setting, candidates.reference(None), 0, rng)]
    draw = random.Random(1)
    while len(records) < many:
        candidate = candidates.sample(draw)
        if isinstance(candidate, Candidate):
            records.append(_scripted(setting, candidate, len(records), rng))
    search = Search(spec, candidates, run.storage_url, records)
    asking, telling = Clock(), Clock()
    for _ in range(asks):
        with asking:
            proposal = search.ask()
        if proposal is None or proposal.candidate is None:
            continue
        record = _scripted(setting, proposal.candidate, proposal.number, rng)
        with telling:
            search.tell(record)
    ask_ms, tell_ms = 1e3 * np.array(asking.spent_s), 1e3 * np.array(telling.spent_s)
    first, ask_ms = ask_ms[0], ask_ms[1:]
    print(f"{many} trials: ask {_spread(ask_ms)}, tell {_spread(tell_ms)}", end="")
    print(f"; the first ask, which looks at the whole space, {first:.0f} ms")


def _spread(spent_ms: NDArray[np.float64]) -> str:
    return f"{np.median(spent_ms):.0f} ms median, {np.quantile(spent_ms, 0.95):.0f} ms p95"


def _scripted(setting: TrialSetting, candidate: Candidate, number: int, rng: np.random.Generator) -> TrialRecord:
    """A record with a value that depends on two parameters, and noise; no engine runs."""
    seqs, tokens = (float(candidate.params.get(name, 512)) for name in ("max_num_seqs", "max_num_batched_tokens"))
    value = 4000 * np.exp(0.03 * rng.normal() - np.log(seqs / 300) ** 2 / 4 - np.log(tokens / 8000) ** 2 / 9)
    record = blank_record(setting, candidate, number)
    return replace(
        record,
        role=Role.REFERENCE if number == 0 else Role.SEARCH,
        outcome=Outcome.OK,
        objective=Estimate(value=float(value), low=None, high=None, n=100),
    )


def _silent(_: str) -> None:
    """Show no phases."""


if __name__ == "__main__":
    main()
