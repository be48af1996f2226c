from __future__ import annotations

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from autotune.errors import InputError
from autotune.records.summary import StudySummary
from autotune.records.trial import Outcome, TrialRecord
from autotune.report.show import show, show_json
from autotune.trial.store import RunDirectory
from tests.runs import HOSTILE, dozen, params, simulated, study, summary, trial, write_run


def text_of(run: RunDirectory, width: int = 200) -> str:
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(run, console)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def data_of(run: RunDirectory) -> Any:
    file = io.StringIO()
    show_json(run, file)
    return json.loads(file.getvalue())


def run_of(path: Path, trials: list[TrialRecord], summarised: StudySummary | None) -> RunDirectory:
    return write_run(path / "run", trials, summarised)


def test_the_verdict_stands_in_words_below_the_table(tmp_path: Path) -> None:
    """A terminal leaves the eye at the end of what was printed."""
    lines = text_of(run_of(tmp_path, dozen(), summary())).splitlines()
    verdict = lines.index("Best: trial 5, 312 output tok/s (293…331), 1.31× the reference (1.18…1.45)")  # noqa: RUF001
    assert lines[verdict + 1].startswith("Holds: ttft_ms.p99 412 ≤ 500 (371…453)")
    assert verdict > lines.index("Why trials failed")
    assert "Not confirmed" not in "\n".join(lines)


def test_a_simulated_run_says_how_to_go_on_with_a_real_engine_and_a_real_one_how_to_deploy(tmp_path: Path) -> None:
    pretended = [replace(trial, simulated=True) for trial in dozen()]
    real, simulated = run_of(tmp_path / "a", dozen(), summary()), run_of(tmp_path / "b", pretended, summary())
    real.best.mkdir()
    (real.best / "vllm.yaml").touch()
    simulated.best.mkdir()
    assert "deploy: vllm serve --config" in text_of(real)
    assert "deploy:" not in text_of(simulated)
    assert "engine: {kind: vllm}" in text_of(simulated)


def test_a_reference_that_is_best_is_no_gain_of_one(tmp_path: Path) -> None:
    lines = text_of(run_of(tmp_path, dozen(), summary(best=0))).splitlines()
    assert "Best: trial 0, 238 output tok/s (224…252), which is the reference" in lines


def test_failures_are_told_once_with_cause_and_remedy(tmp_path: Path) -> None:
    text = text_of(run_of(tmp_path, dozen(), summary()))
    assert text.count("torch.OutOfMemoryError") == 1
    assert "trials 2, 7: ran out of memory while starting" in text
    assert "remedy: lower max_num_seqs" in text


def test_hostile_text_moves_no_cursor(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", dozen(), summary(warnings=(HOSTILE,)), study(name=HOSTILE))
    assert all(line.isprintable() for line in text_of(run).split("\n"))


def test_nothing_feasible_shows_the_nearest_and_what_it_misses(tmp_path: Path) -> None:
    misses = [t for t in dozen() if t.outcome is not Outcome.OK]
    none = summary(best=None, nearest=10, gain=None, objective=None, reference=None, confirmed=False, settled=False)
    text = text_of(run_of(tmp_path, misses, none))
    assert "Nothing met the objective. Nearest: trial 10" in text
    assert "Misses: ttft_ms.p99 560 > 500" in text


def test_an_unsure_best_is_not_confirmed_and_says_why(tmp_path: Path) -> None:
    text = text_of(run_of(tmp_path, dozen(), summary(best=6, confirmed=False, settled=False)))
    assert "Not confirmed: ttft_ms.p99 is unsettled" in text
    assert "Unsettled: ttft_ms.p99 488 ≤ 500 (439…?)" in text


def test_a_simulated_run_carries_the_banner_and_is_never_confirmed(tmp_path: Path) -> None:
    run = run_of(tmp_path, [simulated(t) for t in dozen()], summary(simulated=True, confirmed=True))
    assert "SIMULATED: no real engine ran; not evidence" in text_of(run)
    assert data_of(run)["confirmed"] is False


@pytest.mark.parametrize("count", [0, 1, 4, 12])
def test_unfinished_runs_are_shown_too(tmp_path: Path, count: int) -> None:
    run = run_of(tmp_path, dozen()[:count], None)
    assert "Unfinished, go on with --resume" in text_of(run)
    assert len(data_of(run)["trials"]) == count


def test_the_leader_of_an_unfinished_run_is_only_the_best_so_far(tmp_path: Path) -> None:
    text = text_of(run_of(tmp_path, dozen(), None))
    assert "Best so far: trial 5" in text
    assert "the study has not finished" in text


def test_long_runs_are_shortened_for_people_but_not_for_programs(tmp_path: Path) -> None:
    many = [trial(n, Outcome.OOM_LOAD, params(8, 512), cause="KV") for n in range(12, 300)]
    run = run_of(tmp_path, [*dozen(), *many], summary())
    text = text_of(run)
    assert "98 older trials are not shown" in text
    assert len(re.findall(r"^ +(?:★ )?\d+  ", text, re.MULTILINE)) == 202
    assert len(data_of(run)["trials"]) == 300


def test_json_has_verdict_differences_and_failures(tmp_path: Path) -> None:
    data = data_of(run_of(tmp_path, dozen(), summary()))
    assert (data["best"], data["reference"], data["confirmed"]) == (5, 0, True)
    assert data["trials"][5]["differs"][0] == "max_num_seqs=192"
    assert data["trials"][5]["beside"]["estimate"]["value"] == 412.0
    assert data["failures"][0]["trials"] == [2, 7]


def test_existing_files_are_listed(tmp_path: Path) -> None:
    run = run_of(tmp_path, dozen(), summary())
    (run.path / "report.html").touch()
    assert set(data_of(run)["files"]) == {"summary", "trials", "report"}


def test_a_folder_that_is_no_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="is not a run"):
        text_of(RunDirectory(tmp_path))


def test_a_traceback_as_cause_takes_one_line(tmp_path: Path) -> None:
    crashed = replace(dozen()[9], number=1)
    assert crashed.failure is not None
    crashed = replace(crashed, failure=replace(crashed.failure, cause="Traceback (most…):\n  File x\nKeyError: 'k'"))
    lines = [line.strip() for line in text_of(run_of(tmp_path, [crashed], None)).splitlines()]
    assert "cause: KeyError: 'k' …" in lines
