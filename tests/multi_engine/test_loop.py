"""One study over two engines: references first, a fair share of each, the best of each kept, a doomed one left."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import optuna
import pytest

from autotune.deploy.deployment import best_of_engine, read_deployment
from autotune.errors import EnvironmentFault, InputError
from autotune.records.finals import FinalStage
from autotune.records.spec import BudgetSpec, FinalsSpec, SamplerSpec
from autotune.records.trial import Candidate, Failure, Fault, Outcome, Role, TrialRecord
from autotune.trial.store import RunDirectory
from tests.fakes import Script, ScriptedEngine, failure
from tests.multi_engine.studies import entry, run, study


def ttft(base_ms: float) -> Script:
    """An engine that is slower the fewer sequences it runs; so the reference, which sets none, is its slowest."""
    return lambda candidate, _: base_ms + 400 / (4 + candidate.args.get("max_num_seqs", 4))


def two(a: Script, b: Script) -> dict[str | None, ScriptedEngine]:
    return {"a": ScriptedEngine(a), "b": ScriptedEngine(b)}


def launched(run_directory: RunDirectory) -> list[TrialRecord]:
    return [record for record in run_directory.trials() if record.outcome is not Outcome.RULED_OUT]


@pytest.mark.parametrize("sampler", ["auto", "tpe"])
def test_references_come_first_and_the_worse_engine_gets_its_share(sampler: str, tmp_path: Path) -> None:
    stops = False if sampler == "auto" else None
    spec = study(sampler=SamplerSpec(kind=sampler, stop_when_settled=stops), budget=BudgetSpec(trials=8))
    engines = two(ttft(50), ttft(300))
    summary, directory, _ = run(tmp_path / "run", spec, engines)
    records = launched(directory)
    assert [(r.engine, r.role) for r in records[:2]] == [("a", Role.REFERENCE), ("b", Role.REFERENCE)]
    assert all(r.role is Role.SEARCH for r in records[2:])
    counts = Counter(r.engine for r in records)
    assert sum(counts.values()) == 8
    assert min(counts.values()) >= 3
    assert {name: len(engine.launched) for name, engine in engines.items()} == dict(counts)
    assert [engine.open_servers for engine in engines.values()] == [0, 0]
    assert [result.launched for result in summary.engines] == [counts["a"], counts["b"]]


def test_the_winner_over_all_and_the_best_of_each_are_kept_and_can_be_exported(tmp_path: Path) -> None:
    spec = study(budget=BudgetSpec(trials=8))
    summary, directory, _ = run(tmp_path / "run", spec, two(ttft(300), ttft(50)))
    by_number = {record.number: record for record in directory.trials()}
    held = optuna.load_study(study_name=spec.name, storage=directory.storage_url).trials
    a, b = summary.engines
    assert (summary.best, summary.reference) == (b.best, a.reference)
    for result in (a, b):
        assert result.best is not None
        own = [r.objective.value for r in by_number.values() if r.engine == result.name and r.objective]
        best = by_number[result.best]
        assert best.engine == result.name
        assert best.objective is not None
        assert best.objective.value >= 0.97 * max(own)  # within its interval, ties go to what differs least
        assert result.gain is None or result.gain.value >= 1
    best_json = json.loads((directory.best / "best.json").read_text())
    assert best_json["trial"] == b.best
    assert [engine["name"] for engine in best_json["engines"]] == ["a", "b"]
    other = read_deployment(directory, trial=best_of_engine(directory, "a"))
    assert (other.trial.number, other.spec.engine.name) == (a.best, "a")
    assert (other.best.gain_ratio, other.best.confirmed) == (a.gain, False)
    with pytest.raises(InputError, match="no engine 'c'"):
        best_of_engine(directory, "c")
    for record in by_number.values():  # what the dashboard shows
        assert held[record.number].params["engine"] == record.engine
        assert all(name == "engine" or name.startswith(f"{record.engine}.") for name in held[record.number].params)


def test_the_best_of_each_engine_is_among_the_finalists(tmp_path: Path) -> None:
    spec = study(budget=BudgetSpec(trials=6), finals=FinalsSpec(finalists=1, rounds=2, soak_s=0, shifts=False))
    summary, directory, _ = run(tmp_path / "run", spec, two(ttft(50), ttft(300)))
    again = {r.engine for r in directory.trials() if r.final is not None and r.final.stage is FinalStage.ROUND}
    assert again == {"a", "b"}
    assert summary.finals is not None
    a, b = summary.engines
    assert {a.best, b.best} <= {each.trial for each in summary.finals.finalists}
    assert summary.best == a.best


def _never(_: Candidate, __: int) -> Failure:
    return failure(Outcome.OOM_STARTUP)


def test_an_engine_that_never_runs_is_given_up_and_said_so_while_the_other_goes_on(tmp_path: Path) -> None:
    summary, directory, view = run(tmp_path / "run", study(budget=BudgetSpec(trials=8)), two(ttft(50), _never))
    a, b = summary.engines
    counts = Counter(record.engine for record in launched(directory))
    assert counts == {"a": 4, "b": 4}
    assert (a.given_up, b.best) == (None, None)
    assert b.given_up == "given up: none of its 4 launches could be measured; the last: scripted oom_startup"
    assert view.lines.count(f"engine b: {b.given_up}") == 1
    assert summary.best == a.best


def test_when_none_runs_the_study_ends_and_says_why_of_each(tmp_path: Path) -> None:
    summary, directory, _ = run(tmp_path / "run", study(), two(_never, _never))
    assert summary.best is None
    assert len(launched(directory)) == 8
    assert "a: given up" in summary.stop_reason
    assert "b: given up" in summary.stop_reason


def test_a_set_up_that_keeps_one_engine_from_running_stops_the_study_and_names_it(tmp_path: Path) -> None:
    broken = two(ttft(50), lambda *_: failure(Outcome.ENVIRONMENT, Fault.SETUP))
    with pytest.raises(EnvironmentFault, match="engine b can't run: scripted"):
        run(tmp_path / "run", study(), broken)


_TUNER = """
import sys
from pathlib import Path
from autotune.records.spec import BudgetSpec
from tests.multi_engine.studies import run, study
from tests.multi_engine.test_loop import ttft, two

def slow(base):
    answer = ttft(base)
    def script(candidate, count):
        print("launching", flush=True)
        sys.stdin.readline()
        return answer(candidate, count)
    return script

run(Path(sys.argv[1]), study(budget=BudgetSpec(trials=6)), two(slow(50), slow(300)))
"""


def _let_run(tuner: subprocess.Popen[str], *, launches: int) -> None:
    """Let so many launches end, and wait for the one after them to be under way."""
    assert tuner.stdin is not None
    assert tuner.stdout is not None
    for launch in range(launches + 1):
        ready, _, _ = select.select([tuner.stdout], [], [], 60)
        assert ready, "no launch within a minute"
        assert tuner.stdout.readline() == "launching\n"
        if launch < launches:
            tuner.stdin.write("\n")
            tuner.stdin.flush()


@pytest.mark.integration
def test_a_tuner_killed_in_any_engines_trial_goes_on_without_losing_or_repeating_one(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", _TUNER, str(tmp_path / "run")],
        cwd=root,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(root)},
    ) as tuner:
        try:
            _let_run(tuner, launches=4)
        finally:
            tuner.send_signal(signal.SIGKILL)
    before = launched(RunDirectory(tmp_path / "run"))
    assert [record.number for record in before] == [0, 1, 2, 3]
    engines = two(ttft(50), ttft(300))
    summary, directory, _ = run(tmp_path / "run", study(budget=BudgetSpec(trials=6)), engines, resume=True)
    after = launched(directory)
    assert after[:4] == before
    assert len(after) == 6
    assert sum(len(engine.launched) for engine in engines.values()) == 2
    assert [result.launched for result in summary.engines] == [
        sum(record.engine == name for record in after) for name in ("a", "b")
    ]


def test_a_study_goes_on_only_with_the_same_engines(tmp_path: Path) -> None:
    run(tmp_path / "run", study(budget=BudgetSpec(trials=4)), two(ttft(50), ttft(60)))
    changed = study(entry("a"), entry("b"), budget=BudgetSpec(trials=6))
    with pytest.raises(InputError, match=r"changed since it was started: .*engines"):
        run(tmp_path / "run", changed, two(ttft(50), ttft(60)), resume=True)
