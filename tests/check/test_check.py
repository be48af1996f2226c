"""`autotune check`: what a study would do, found out without a launch."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from autotune import cli
from autotune.check import Report, check_study, lines
from autotune.errors import ExitCode
from autotune.records.spec import Args, Choice, IntRange, LoadSpec, ParameterSpec, Slo, SpaceSpec, StudySpec
from autotune.records.trial import Failure, Fault, Outcome
from tests.builders import objective, space_spec, study_spec
from tests.fakes import ScriptedEngine, failure

STUDY = """
name: tried
model: {model}
engine: {{kind: {kind}, command: /nowhere/vllm}}
search_space: {space}
objective:
  name: o
  maximize: output_tok_per_s
  slos: {{ttft_ms.p99: 500}}
  workload: {{input_tokens: {{uniform: [64, 3000]}}, output_tokens: {{uniform: [16, 500]}}}}
  load: {{poisson_rps: 4, duration_s: 30}}
quality: unchecked
budget: {{trials: 10}}
"""
LLAMA = "meta-llama/Llama-3.1-8B"


def checked(tmp_path: Path, *options: str, model: str = LLAMA, kind: str = "simulated", space: str = "x") -> Result:
    space = "vllm/default" if space == "x" else space
    file = tmp_path / "study.yaml"
    file.write_text(STUDY.format(model=model, kind=kind, space=space))
    return CliRunner().invoke(cli.app, ["check", str(file), *options])


def report_of(spec: StudySpec, engine: ScriptedEngine | None = None) -> Report:
    engine = engine or ScriptedEngine(lambda *_: 1.0)
    report = check_study(spec, engine)
    assert engine.launched == []
    return report


def test_a_simulated_study_is_checked_at_once(tmp_path: Path) -> None:
    result = checked(tmp_path)
    assert result.exit_code == 0, result.output
    for words in (
        "SIMULATED",
        "block_size                    16, 32, 64, 128",
        "tensor_parallel_size is not searched",
        "of 200 random candidates could be launched",
        "space rules: ",
        "arguments: the defaults of the engine",
        "max_model_len=131072",
        "10 launches: ",
        "ttft_ms.p99: takes",
        "this load gives about 120",
        "only ever be unsure",
    ):
        assert words in result.output


def test_the_same_as_json(tmp_path: Path) -> None:
    result = checked(tmp_path, "--json")
    assert result.exit_code == 0, result.output
    told = json.loads(result.stdout)
    assert told["sampled"] == 200
    assert told["launchable"] + sum(each["count"] for each in told["excluded"]) == 200
    assert told["cost"]["trials"] == 10
    assert told["simulated"] is True
    assert not (tmp_path / "runs").exists()


def test_what_does_not_fit_is_told_with_its_figures(tmp_path: Path) -> None:
    result = checked(tmp_path, model="meta-llama/Llama-3.1-70B")
    assert "can't run (memory model): weights 131" in result.output
    assert "  memory model: " in result.output


def test_problems_of_a_study_are_told_as_ever(tmp_path: Path) -> None:
    result = checked(tmp_path, space="vllm/nonesuch")
    assert result.exit_code == 1  # main() turns the error into 2
    assert "vllm/nonesuch" in str(result.exception)


def test_an_engine_that_is_not_there_ends_with_4(tmp_path: Path) -> None:
    result = checked(tmp_path, kind="vllm")
    assert result.exit_code == ExitCode.ENVIRONMENT, result.output
    assert "there is no program `/nowhere/vllm`" in result.output
    assert "remedy: set engine.command" in result.output


def test_what_is_excluded_is_counted_by_source_with_the_commonest_reasons() -> None:
    def odd(args: Args) -> Failure | None:
        return failure(Outcome.BAD_CONFIG) if args.get("max_num_seqs", 0) % 2 else None

    report = report_of(study_spec(), ScriptedEngine(lambda *_: 1.0, odd))
    by_source = {each.source: each for each in report.excluded}
    assert set(by_source) == {"space rules", "engine's own check"}
    assert by_source["engine's own check"].reasons == (("scripted bad_config", by_source["engine's own check"].count),)
    assert "`max_num_batched_tokens >= max_num_seqs` does not hold" in by_source["space rules"].reasons[0][0]
    assert 0 < report.launchable < 200
    assert report.exit_code is ExitCode.OK


def test_a_set_up_that_keeps_the_engine_from_running_ends_with_4_and_is_no_exclusion() -> None:
    engine = ScriptedEngine(lambda *_: 1.0, lambda _: failure(Outcome.ENVIRONMENT, Fault.SETUP))
    report = report_of(study_spec(), engine)
    assert report.exit_code is ExitCode.ENVIRONMENT
    assert report.reference.failure is not None
    assert "engine's own check" not in {each.source for each in report.excluded}


def test_a_space_of_which_nothing_can_be_launched_ends_with_2() -> None:
    engine = ScriptedEngine(lambda *_: 1.0, lambda args: failure(Outcome.BAD_CONFIG) if args else None)
    report = report_of(study_spec(), engine)
    assert (report.launchable, report.exit_code) == (0, ExitCode.BAD_INPUT)


def test_the_space_is_told_with_its_size() -> None:
    choice = ParameterSpec(name="block_size", domain=Choice(values=(16, 32)))
    steps = ParameterSpec(name="max_num_seqs", domain=IntRange(low=8, high=24, step=8))
    spec = study_spec(search_space=SpaceSpec(name="s", engine=space_spec().engine, parameters=(choice, steps)))
    report = report_of(spec)
    assert report.combinations == 6
    assert [(each.name, each.values, each.count) for each in report.dimensions] == [
        ("block_size", "16, 32", 2),
        ("max_num_seqs", "8 to 24 in steps of 8", 3),
    ]


def test_time_is_start_ups_and_load_of_every_launch() -> None:
    load = LoadSpec(concurrency=8, duration_s=100, warmup_s=20, repeats=2)
    cost = report_of(study_spec(objective=objective(load=load))).cost
    assert cost.load_s == 255
    assert cost.startup_known
    assert 20 < cost.startup_s < cost.first_startup_s < 200
    assert cost.total_s == pytest.approx(cost.first_startup_s + 5 * cost.startup_s + 6 * 255)


def test_in_a_closed_loop_the_answers_time_decides_what_can_settle() -> None:
    slos = (Slo(metric="ttft_ms.p90", limit=500),)
    load = LoadSpec(concurrency=10, duration_s=60, warmup_s=1)
    spec = study_spec(objective=objective(slos=slos, load=load))
    report = report_of(spec)
    (slo,) = report.slos
    assert slo.expected is None
    assert slo.needed
    text = "\n".join(lines(report, load))
    assert f"10 clients send them if an answer takes {600 / slo.needed:.2g} s or less" in text
