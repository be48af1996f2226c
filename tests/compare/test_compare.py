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
from autotune.compare.record import Difference
from autotune.compare.unlike import Read
from autotune.compare.words import leaders
from autotune.errors import ExitCode, InputError
from autotune.records.finals import FinalRun, FinalStage
from autotune.records.spec import Direction, EngineKind, EngineSpec, FixedLength, LoadSpec, PriceSpec, Slo
from autotune.records.summary import EngineResult
from autotune.records.trial import Estimate, Outcome, Role, TrialRecord
from autotune.trial.store import RunDirectory
from tests.multi_engine.studies import entry
from tests.multi_engine.studies import study as several
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


# --- one run of several engines, several workloads --------------------------------------------------------------------


def engines_run(folder: Path, values: dict[str, float], *, given_up: str | None = None, **changes: Any) -> Path:
    """A run of two engines: trials 0 and 1 are the references, 2 and 3 the best of each."""
    names = list(values)
    spec = several(*(entry(name) for name in names), **{"objective": GOAL, **changes})
    trials = [
        replace(trial(i, Outcome.OK, role=Role.REFERENCE, tok_per_s=200.0, ttft_ms=310.0), engine=name)
        for i, name in enumerate(names)
    ]
    trials += [
        replace(
            trial(2 + i, Outcome.OK, params(64, 4096), tok_per_s=values[name], ttft_ms=300),
            engine=name,
            fingerprint=name,
            startup_kind="warm",
        )
        for i, name in enumerate(names)
    ]
    trials[0] = replace(trials[0], startup_kind="cold", startup_s=90.0)
    results = tuple(
        EngineResult(
            name=name,
            kind="simulated",
            best=2 + i,
            reference=i,
            objective=estimate(values[name]),
            gain=None,
            launched=2,
            ruled_out=0,
            given_up=given_up if i else None,
        )
        for i, name in enumerate(names)
    )
    write_run(folder, trials, summary(best=2, reference=0, launched=4, engines=results), spec)
    return folder


def test_the_engines_of_one_run_are_compared_by_their_names(tmp_path: Path) -> None:
    found = compare_runs([engines_run(tmp_path / "r", {"vllm": 600.0, "trtllm": 300.0})])
    vllm, trtllm = found.contenders
    assert (vllm.run, trtllm.run) == ("vllm", "trtllm")
    assert [c.best.trial if c.best else None for c in found.contenders] == [2, 3]
    assert [c.reference.trial if c.reference else None for c in found.contenders] == [0, 1]
    assert [c.launched for c in found.contenders] == [2, 2]
    assert (vllm.cold_start_s, trtllm.cold_start_s) == (90.0, None)
    assert found.differences[0].winner == "vllm"
    assert "1 min 30 s" in text_of(tmp_path / "r")


def test_an_engine_that_was_given_up_is_told_of(tmp_path: Path) -> None:
    path = engines_run(tmp_path / "r", {"a": 600.0, "b": 300.0}, given_up="given up: none of its 4 launches ran")
    assert "b was given up: none of its 4 launches ran" in compare_runs([path]).warnings


def test_an_engine_is_compared_with_another_run_of_the_same_question(tmp_path: Path) -> None:
    path = engines_run(tmp_path / "r", {"a": 600.0, "b": 300.0}, model=study().model)
    alone = run(tmp_path / "alone", "x", records(450), engine=EngineSpec(kind=EngineKind.SIMULATED))
    found = compare_runs([path, alone])
    assert [c.run for c in found.contenders] == [f"{path}:a", f"{path}:b", str(alone)]
    assert len([d for d in found.differences if d.metric == METRIC]) == 3


def test_engines_are_compared_workload_by_workload_and_each_shape_is_named(tmp_path: Path) -> None:
    paths = []
    for name, total, values in (("long", 10.0, (600.0, 300.0)), ("short", 1.1, (300.0, 301.0))):
        workload = replace(GOAL.workload, shape=name)
        path = engines_run(
            tmp_path / name,
            dict(zip(("vllm", "trtllm"), values, strict=True)),
            objective=replace(GOAL, workload=workload),
        )
        _with_totals(path, total)
        paths.append(path)
    found = compare_runs(paths)
    assert [c.shape.partition(" (")[0] for c in found.contenders] == ["prefill-heavy"] * 2 + ["decode-heavy"] * 2
    assert all(d.first.partition(":")[0] == d.second.partition(":")[0] for d in found.differences)
    assert found.verdict[-2].startswith("by shape, prefill-heavy (long")
    assert found.verdict[-2].endswith(f"{paths[0]}:vllm")
    assert found.verdict[-1].endswith(f": a tie of {paths[1]}:vllm, {paths[1]}:trtllm")


def _with_totals(path: Path, factor: float) -> None:
    """Give every trial a figure of all tokens: so many times those of answers."""
    directory = RunDirectory(path)
    for record in directory.trials():
        (level,) = record.measurements
        total = estimate(level.values[METRIC].value * factor)
        changed = replace(level, values={**level.values, "total_tok_per_s": total})
        directory.write_trial(replace(record, measurements=(changed,)))


def test_one_workload_without_a_counterpart_is_refused_with_the_reason(tmp_path: Path) -> None:
    other = replace(GOAL, workload=replace(GOAL.workload, shape="rag"))
    path = engines_run(tmp_path / "r", {"a": 600.0, "b": 300.0}, model=study().model)
    lone = run(tmp_path, "c", records(300), objective=other, engine=EngineSpec(kind=EngineKind.SIMULATED))
    with pytest.raises(InputError, match="workload: "):
        compare_runs([path, lone])


@pytest.mark.parametrize(("args", "word"), [({"tokenizer": "another"}, "tokenizer"), ({"revision": "abc"}, "weights")])
def test_other_tokenizers_and_weights_are_refused_unless_they_are_the_question(
    args: dict[str, Any], word: str, tmp_path: Path
) -> None:
    other = replace(study().engine, args={**study().engine.args, **args})
    a, b = run(tmp_path, "a", records(300)), run(tmp_path, "b", records(300), engine=other)
    with pytest.raises(InputError, match=rf"(?m)^  {word}: [\s\S]*--allow {word}"):
        compare_runs([a, b])
    assert compare_runs([a, b], [word]).allowed == (word,)


def test_another_commit_of_the_model_is_other_weights_and_an_unknown_one_is_not(tmp_path: Path) -> None:
    commits = ("one", "two", None)
    a, b, c = (
        run(tmp_path, str(commit), [replace(r, versions={"model_revision": commit}) for r in records(300)])
        for commit in commits
    )
    with pytest.raises(InputError, match="weights: "):
        compare_runs([a, b])
    assert compare_runs([a, c]).verdict


def test_what_the_finals_measured_decides_and_no_soak_does(tmp_path: Path) -> None:
    def final(number: int, value: float, stage: FinalStage) -> TrialRecord:
        record = trial(number, Outcome.OK, params(64, 4096), tok_per_s=value, ttft_ms=300, role=Role.FINAL)
        args = records(1)[1].args
        return replace(
            record,
            args=args,
            fingerprint=records(1)[1].fingerprint,
            final=FinalRun(of=1, stage=stage, round=1, after=1),
        )

    lucky = [
        *records(900),
        *(final(2 + i, 300.0 + i, FinalStage.ROUND) for i in range(3)),
        final(5, 50.0, FinalStage.SOAK),
    ]
    a, b = run(tmp_path, "a", lucky), run(tmp_path, "b", records(300, repeats=(301, 302)))
    found = compare_runs([a, b])
    best = found.contenders[0].best
    assert best is not None
    assert best.launches == 3
    assert best.figures[METRIC].value == pytest.approx(301, abs=0.1)
    assert best.figures[METRIC].low is not None
    assert found.differences[0].winner is None


def test_workloads_of_one_shape_are_told_apart(tmp_path: Path) -> None:
    paths = []
    for tokens in (100, 200):
        workload = replace(GOAL.workload, input_tokens=FixedLength(tokens=tokens))
        values = {"a": 600.0, "b": 300.0 + tokens}
        paths.append(engines_run(tmp_path / str(tokens), values, objective=replace(GOAL, workload=workload)))
    found = compare_runs(paths)
    assert [c.shape for c in found.contenders] == ["chat, 1"] * 2 + ["chat, 2"] * 2
    assert len([d for d in found.differences if d.metric == METRIC]) == 2


@pytest.mark.parametrize(
    ("winners", "expected"),
    [
        ((("a", "b", "a"), ("a", "c", "a"), ("b", "c", None)), "a"),
        ((("a", "b", None), ("a", "c", "a"), ("b", "c", None)), "a tie of a, b"),
        ((("a", "b", "b"), ("a", "c", "c"), ("b", "c", "c")), "c"),
        ((), "not decided"),
    ],
)
def test_who_is_ahead_of_everyone_leads_though_others_tie(
    winners: Sequence[tuple[str, str, str | None]], expected: str, tmp_path: Path
) -> None:
    runs = [run(tmp_path, name, records(300)) for name in "abc"]
    contenders = [replace(c, run=c.run[-1]) for c in compare_runs(runs).contenders]
    differences = [
        Difference(metric=METRIC, first=a, second=b, ratio=estimate(1.0), winner=winner, freedom=4)
        for a, b, winner in winners
    ]
    assert leaders(contenders, differences) == expected
