"""Runs side by side: what is a difference, what a tie, what can't be compared, and who was treated better."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from autotune.cli import main
from autotune.compare import compare_runs, render
from autotune.compare.deciding import better_when, difference
from autotune.compare.unlike import Read
from autotune.errors import ExitCode, InputError
from autotune.records.spec import Direction, EngineKind, EngineSpec, LoadSpec, PriceSpec, Slo
from autotune.records.trial import Estimate, Outcome, Role, TrialRecord
from tests.runs import estimate, params, study, summary, trial, write_run

METRIC = "output_tok_per_s"


def records(best: float, reference: float = 200.0, *, repeats: Sequence[float] = ()) -> list[TrialRecord]:
    """A reference, a best, and further launches of that best."""
    again = [trial(2 + i, Outcome.OK, params(64, 4096), tok_per_s=v, ttft_ms=300) for i, v in enumerate(repeats)]
    return [
        trial(0, Outcome.OK, role=Role.REFERENCE, tok_per_s=reference, ttft_ms=310),
        trial(1, Outcome.OK, params(64, 4096), tok_per_s=best, ttft_ms=300),
        *again,
    ]


def run(folder: Path, name: str, trials: Sequence[TrialRecord], **changes: Any) -> Path:
    found = summary(best=1, reference=0, launched=len(trials))
    write_run(folder / name, trials, found, replace(study(), **changes))
    return folder / name


def text_of(*paths: Path, allow: Sequence[str] = ()) -> str:
    console = Console(width=200, file=StringIO())
    console.print(render(compare_runs(paths, allow)))
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


# --- difference or tie ------------------------------------------------------------------------------------------------


def test_one_launch_each_that_is_far_ahead_is_ahead_but_to_be_confirmed(tmp_path: Path) -> None:
    found = compare_runs([run(tmp_path, "a", records(600)), run(tmp_path, "b", records(300))])
    first = found.differences[0]
    assert (first.metric, first.winner, first.freedom) == (METRIC, str(tmp_path / "a"), 0)
    assert "is ahead, to be confirmed by repeated launches" in found.verdict[0]
    assert any("assumed to differ by 3%" in warning for warning in found.warnings)


def test_one_launch_each_that_is_little_ahead_is_a_tie(tmp_path: Path) -> None:
    found = compare_runs([run(tmp_path, "a", records(320)), run(tmp_path, "b", records(300))])
    assert found.differences[0].winner is None
    assert "a tie" in found.verdict[0]


def test_a_launch_known_to_a_thousandth_still_differs_from_the_next_by_noise(tmp_path: Path) -> None:
    """8 % apart, with intervals of a thousandth: less than two launches of one configuration may differ by."""
    a, b = (run(tmp_path, name, [_exactly(r) for r in records(value)]) for name, value in (("a", 324), ("b", 300)))
    assert compare_runs([a, b]).differences[0].winner is None


def _exactly(record: TrialRecord) -> TrialRecord:
    (level,) = record.measurements
    values = {name: estimate(found.value, spread=0.001) for name, found in level.values.items()}
    return replace(record, measurements=(replace(level, values=values),))


def test_repeated_launches_prove_what_one_launch_can_not(tmp_path: Path) -> None:
    a = run(tmp_path, "a", records(320, repeats=(321, 319)))
    b = run(tmp_path, "b", records(300, repeats=(301, 299)))
    found = compare_runs([a, b])
    assert (found.differences[0].winner, found.differences[0].freedom) == (str(a), 4)
    assert "is better" in found.verdict[0]
    assert [contender.best.launches for contender in found.contenders if contender.best] == [3, 3]


def test_repeated_launches_that_scatter_are_a_tie(tmp_path: Path) -> None:
    a = run(tmp_path, "a", records(320, repeats=(250, 390)))
    found = compare_runs([a, run(tmp_path, "b", records(300, repeats=(240, 360)))])
    assert found.differences[0].winner is None


def test_lower_is_better_of_costs_and_latencies_and_higher_of_rates() -> None:
    assert better_when("usd_per_million_output_tok") is better_when("ttft_ms.p50") is Direction.MINIMIZE
    assert better_when("capacity_rps_per_gpu") is Direction.MAXIMIZE


def test_the_cheaper_one_wins_at_its_own_price(tmp_path: Path) -> None:
    dear, cheap = (replace(study(), price=PriceSpec(usd_per_gpu_hour=usd)) for usd in (5.0, 2.0))
    a = run(tmp_path, "a", records(300), price=dear.price)
    b = run(tmp_path, "b", records(300), price=cheap.price)
    costs = [d for d in compare_runs([a, b]).differences if d.metric == "usd_per_million_output_tok"]
    assert [d.winner for d in costs] == [str(b)]


@given(st.floats(1, 1e4), st.floats(1, 1e4))
def test_the_order_of_runs_changes_no_verdict(one: float, other: float) -> None:
    a, b = (Read(name=name, spec=study(), trials=records(value)) for name, value in (("a", one), ("b", other)))
    there, back = (
        difference(METRIC, (a, a.trials[1]), (b, b.trials[1])),
        difference(METRIC, (b, b.trials[1]), (a, a.trials[1])),
    )
    assert there is not None
    assert back is not None
    assert there.winner == back.winner
    assert there.ratio.value == pytest.approx(1 / back.ratio.value)


def test_an_open_interval_decides_nothing() -> None:
    open_ended = Estimate(value=900.0, low=None, high=None, n=5)
    trials = records(300)
    wide = replace(trials[1], measurements=(replace(trials[1].measurements[0], values={METRIC: open_ended}),))
    a, b = Read(name="a", spec=study(), trials=[trials[0], wide]), Read(name="b", spec=study(), trials=trials)
    found = difference(METRIC, (a, wide), (b, trials[1]))
    assert found is not None
    assert found.winner is None


# --- unlike things ----------------------------------------------------------------------------------------------------

GOAL = study().objective


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"objective": replace(GOAL, slos=(Slo(metric="ttft_ms.p99", limit=900.0),))}, "SLOs"),
        ({"objective": replace(GOAL, load=LoadSpec(poisson_rps=9.0))}, "load"),
        ({"objective": replace(GOAL, workload=replace(GOAL.workload, shape="rag"))}, "workload"),
        ({"objective": replace(GOAL, metric="goodput_rps")}, "objective"),
        ({"objective": replace(GOAL, confidence=0.9)}, "confidence"),
        ({"model": "another/model"}, "model"),
        ({"seed": 7}, "seed"),
        ({"engine": EngineSpec(kind=EngineKind.SIMULATED)}, "simulated"),
    ],
)
def test_unlike_runs_are_refused_with_the_reason(changes: dict[str, Any], word: str, tmp_path: Path) -> None:
    a, b = run(tmp_path, "a", records(300)), run(tmp_path, "b", records(300), **changes)
    with pytest.raises(InputError, match=rf"(?m)^  {word}: .*/a has ") as refused:
        compare_runs([a, b])
    assert refused.value.exit_code == ExitCode.BAD_INPUT


def test_what_may_be_the_question_can_be_allowed(tmp_path: Path) -> None:
    a, b = run(tmp_path, "a", records(300)), run(tmp_path, "b", records(300), model="m", seed=7)
    with pytest.raises(InputError, match=r"--allow model --allow seed"):
        compare_runs([a, b])
    assert compare_runs([a, b], ["model", "seed"]).allowed == ("model", "seed")
    with pytest.raises(InputError, match="'workload' can't be allowed"):
        compare_runs([a, b], ["workload"])


def test_other_gpus_are_refused_but_an_endpoints_are_its_own_business(tmp_path: Path) -> None:
    a = run(tmp_path, "a", [replace(record, versions={"gpus": "NVIDIA H100"}) for record in records(300)])
    b = run(tmp_path, "b", [replace(record, versions={"gpus": "NVIDIA A100"}) for record in records(300)])
    with pytest.raises(InputError, match=r"gpus: .*1 x NVIDIA H100.*1 x NVIDIA A100[\s\S]*--allow gpus"):
        compare_runs([a, b])
    endpoint = EngineSpec(kind=EngineKind.ENDPOINT, url="http://h")
    c = run(tmp_path, "c", records(300)[:2], engine=endpoint)
    assert compare_runs([a, c]).contenders[1].machine == "not known"


def test_one_run_or_the_same_twice_is_nothing_to_compare(tmp_path: Path) -> None:
    a = run(tmp_path, "a", records(300))
    for paths in ([a], [a, a], [a, tmp_path / "." / "a"]):
        with pytest.raises(InputError, match="nothing to compare"):
            compare_runs(paths)
    with pytest.raises(InputError, match="is not a run"):
        compare_runs([a, tmp_path])


# --- equal treatment, words -------------------------------------------------------------------------------------------


def test_who_was_tried_more_often_is_told(tmp_path: Path) -> None:
    a = run(tmp_path, "a", records(300, repeats=(300, 301, 302)))
    found = compare_runs([a, run(tmp_path, "b", records(300))])
    assert any("unequal effort" in warning for warning in found.warnings)


def test_a_run_without_a_result_is_said_to_have_none(tmp_path: Path) -> None:
    a = run(tmp_path, "a", records(300))
    write_run(tmp_path / "b", records(300), summary(best=None, gain=None, objective=None), study())
    found = compare_runs([a, tmp_path / "b"])
    assert found.verdict == (f"{tmp_path / 'b'}: nothing met the objective by figures that can be trusted",)


def test_best_and_reference_of_each_are_shown_with_intervals(tmp_path: Path) -> None:
    shown = text_of(run(tmp_path, "a", records(600)), run(tmp_path, "b", records(300)))
    assert "best, trial 1" in shown
    assert "reference, trial 0" in shown
    assert "600 (564…636)" in shown
    assert "Verdict" in shown


def test_the_command_prints_the_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    a, b = run(tmp_path, "a", records(600)), run(tmp_path, "b", records(300))
    monkeypatch.setattr(sys, "argv", ["autotune", "compare", str(a), str(b), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == ExitCode.OK
    printed = json.loads(capsys.readouterr().out)
    assert (printed["schema_version"], printed["differences"][0]["winner"]) == (1, str(a))
