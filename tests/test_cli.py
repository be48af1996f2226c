"""The command line as its users and their pipelines meet it: exit codes, messages, files, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from autotune import __version__
from autotune.cli import main
from autotune.errors import ExitCode
from autotune.records.trial import Outcome
from autotune.trial.store import RunDirectory
from tests.engines.children import gone, wait_until

STUDY = """\
name: small
model: autotune/tiny
engine:
  kind: simulated
  args: {max_model_len: 512}
search_space:
  engine: vllm
  parameters:
    max_num_seqs: {int: [1, 64], log: true}
    max_num_batched_tokens: {int: [64, 2048], log: true}
  rules: [max_num_batched_tokens >= max_num_seqs]
objective:
  maximize: output_tok_per_s
  slos: {ttft_ms.p90: 500}
  workload: {input_tokens: 64, output_tokens: 16}
  load: {concurrency: 8, duration_s: 2, warmup_s: 0.5}
  confidence: 0.9
budget: {trials: 3}
finals: false
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a command ended, and what it said."""

    code: object
    out: str
    err: str


Autotune = Callable[..., Ended]


@pytest.fixture
def autotune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Autotune:
    """Run `autotune …` in an empty folder, in this process: starting Python again would take most of the time."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["autotune", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return Ended(code=end.value.code, out=out, err=err)

    return run


def write_study(folder: Path, *replacements: tuple[str, str]) -> Path:
    """The small study with texts replaced, each of which must be there once."""
    text = STUDY
    for old, new in replacements:
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    path = folder / "study.yaml"
    path.write_text(text)
    return path


def files(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


# --- a study's end ----------------------------------------------------------------------------------------------------


def test_a_study_that_finds_a_configuration_ends_with_0_and_files(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path)
    ended = autotune("study", "study.yaml")
    assert ended.code == ExitCode.OK
    assert "SIMULATED" in ended.out
    assert "Best: trial" in ended.out
    assert "trial 0" in ended.err
    assert "trial 0" not in ended.out.splitlines()[0]
    assert files(tmp_path / "runs/small/best") == {"best.json", "serve.sh", "vllm.yaml"}


def test_a_bad_study_ends_with_2_and_every_problem_at_its_line(autotune: Autotune, tmp_path: Path) -> None:
    write_study(
        tmp_path,
        ("kind: simulated", "kind: simulatd"),
        ("max_num_seqs: {int: [1, 64], log: true}", "max_num_seqs: {int: [64, 1], log: true}"),
        ("ttft_ms.p90: 500", "ttft.p90: 500"),
    )
    ended = autotune("study", "study.yaml")
    assert ended.code == ExitCode.BAD_INPUT
    for line, word in ((4, "simulatd"), (9, "max_num_seqs"), (14, "ttft.p90")):
        assert re.search(rf"study\.yaml:{line}: .*{re.escape(word)}", ended.err), ended.err
    assert "Traceback" not in ended.err
    assert files(tmp_path) == {"study.yaml"}


def test_what_the_engine_would_refuse_is_a_bad_study_too(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path, ("args: {max_model_len: 512}", "args: {max_modle_len: 512}"))
    ended = autotune("study", "study.yaml")
    assert ended.code == ExitCode.BAD_INPUT
    assert re.search(r"study\.yaml:5: .*max_modle_len.*did you mean `max_model_len`", ended.err), ended.err
    assert files(tmp_path) == {"study.yaml"}


def test_an_objective_that_nothing_meets_ends_with_3_and_the_nearest(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path, ("ttft_ms.p90: 500", "ttft_ms.p90: 0.001"))
    ended = autotune("study", "study.yaml")
    assert ended.code == ExitCode.NOTHING_FEASIBLE
    assert "Nothing met the objective. Nearest: trial" in ended.out
    run = RunDirectory(tmp_path / "runs/small")
    assert not run.best.exists()
    assert {trial.outcome for trial in run.trials()} <= {Outcome.SLO_MISS, Outcome.RULED_OUT}


def test_an_unsettled_best_ends_with_3_unless_that_is_accepted(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path, ("ttft_ms.p90: 500", "ttft_ms.p99.9: 500"), ("duration_s: 2", "duration_s: 0.2"))
    assert autotune("study", "study.yaml").code == ExitCode.NOTHING_FEASIBLE
    evidence = json.loads((tmp_path / "runs/small/best/best.json").read_text())
    assert (evidence["confirmed"], evidence["slos"][0]["verdict"]) == (False, "unsure")
    assert autotune("study", "study.yaml", "--resume", "--accept-unsure").code == ExitCode.OK
    assert autotune("study", "study.yaml", "--resume").code == ExitCode.NOTHING_FEASIBLE


def test_an_engine_that_is_not_there_ends_with_4_and_what_to_do(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path, ("kind: simulated", "kind: vllm\n  command: /nowhere/vllm"))
    ended = autotune("study", "study.yaml")
    assert ended.code == ExitCode.ENVIRONMENT
    assert "/nowhere/vllm" in ended.err
    assert "set engine.command" in ended.err
    assert RunDirectory(tmp_path / "runs/small").trials() == []


# --- starting and going on --------------------------------------------------------------------------------------------


def test_a_finished_study_is_not_started_again_nor_changed_under_the_hand(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path)
    assert autotune("study", "study.yaml").code == ExitCode.OK
    again = autotune("study", "study.yaml")
    assert again.code == ExitCode.BAD_INPUT
    assert "--resume" in again.err
    write_study(tmp_path, ("concurrency: 8", "concurrency: 9"))
    changed = autotune("study", "study.yaml", "--resume")
    assert changed.code == ExitCode.BAD_INPUT
    assert "objective" in changed.err


def test_a_larger_budget_goes_on_where_the_study_ended(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path)
    assert autotune("study", "study.yaml", "--runs", "elsewhere").code == ExitCode.OK
    run = RunDirectory(tmp_path / "elsewhere/small")
    before = trial_files(run)
    write_study(tmp_path, ("trials: 3", "trials: 5"))
    assert autotune("study", "study.yaml", "--runs", "elsewhere", "--resume").code == ExitCode.OK
    assert_went_on(run, before, budget=5)


def test_there_is_nothing_to_resume_where_nothing_was_started(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path)
    ended = autotune("study", "study.yaml", "--resume")
    assert ended.code == ExitCode.BAD_INPUT
    assert "without --resume" in ended.err
    assert not (tmp_path / "runs/small").exists()


# --- looking at a run -------------------------------------------------------------------------------------------------


def test_a_run_is_shown_as_text_as_json_and_as_a_page(autotune: Autotune, tmp_path: Path) -> None:
    write_study(tmp_path)
    autotune("study", "study.yaml")
    text = autotune("show", "runs/small")
    assert (text.code, text.err) == (ExitCode.OK, "")
    assert "Best: trial" in text.out
    shown = autotune("show", "runs/small", "--json")
    assert shown.code == ExitCode.OK
    found = json.loads(shown.out)
    assert (found["study"], found["simulated"], found["confirmed"]) == ("small", True, False)
    assert found["best"] in [trial["number"] for trial in found["trials"]]
    report = autotune("report", "runs/small")
    assert (report.code, report.out) == (ExitCode.OK, "runs/small/report.html\n")
    assert autotune("report", "runs/small", "-o", "page.html").code == ExitCode.OK
    for page in (tmp_path / "runs/small/report.html", tmp_path / "page.html"):
        assert page.read_text().lower().startswith("<!doctype html>")


@pytest.mark.parametrize("command", ["show", "report", "dashboard"])
def test_a_folder_that_is_no_run_is_refused(autotune: Autotune, tmp_path: Path, command: str) -> None:
    ended = autotune(command, str(tmp_path))
    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert "is not a run" in ended.err
    assert "runs/<study>" in ended.err
    assert files(tmp_path) == set()


# --- what is shipped --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "key"), [("study", "engine"), ("search_space", "parameters"), ("objective", "slos")])
def test_each_kind_of_file_has_a_schema(autotune: Autotune, kind: str, key: str) -> None:
    ended = autotune("schema", kind)
    assert ended.code == ExitCode.OK
    schema: dict[str, Any] = json.loads(ended.out)
    assert key in schema["properties"]
    if kind == "study":
        assert autotune("schema").out == ended.out


@pytest.mark.parametrize(("command", "name"), [("spaces", "vllm/default"), ("objectives", "chat")])
def test_shipped_files_are_listed_with_what_they_are_for_and_printed_to_be_copied(
    autotune: Autotune, command: str, name: str
) -> None:
    listed = autotune(command)
    assert listed.code == ExitCode.OK
    line = next(line for line in listed.out.splitlines() if line.split()[0] == name)
    assert len(line.split()) > 3
    assert "parameters:" in autotune(command, name).out or "slos:" in autotune(command, name).out


@pytest.mark.parametrize(
    ("arguments", "known"),
    [(("spaces", "vllm/defualt"), "vllm/default"), (("objectives", "chatt"), "chat"), (("schema", "studdy"), "study")],
)
def test_an_unknown_name_is_refused_with_those_that_exist(
    autotune: Autotune, arguments: tuple[str, str], known: str
) -> None:
    ended = autotune(*arguments)
    assert (ended.code, ended.out) == (ExitCode.BAD_INPUT, "")
    assert arguments[1] in ended.err
    assert re.search(rf"there are: .*\b{known}\b", ended.err)


def test_version_help_and_wrong_options(autotune: Autotune) -> None:
    assert autotune("--version") == Ended(code=ExitCode.OK, out=f"autotune {__version__}\n", err="")
    text = " ".join(autotune("--help").out.split())
    assert all(f"{code.value} " in text.partition("Exit codes:")[2] for code in ExitCode)
    assert autotune("study").code == ExitCode.BAD_INPUT
    assert autotune("study", "no-such-file.yaml").code == ExitCode.BAD_INPUT
    assert autotune("show", "--jason", "x").code == ExitCode.BAD_INPUT


# --- signals ----------------------------------------------------------------------------------------------------------

SERVER_FACE = ("kind: simulated", "kind: simulated\n  simulate: {face: server}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """A tuner in a process of its own; what it says on stderr grows in `err`."""

    process: subprocess.Popen[bytes]
    run: RunDirectory
    err: Path

    def wait_for(self, pattern: str) -> None:
        def said() -> bool:
            assert self.process.poll() is None, self.err.read_text()
            return re.search(pattern, self.err.read_text(), re.MULTILINE) is not None

        wait_until(said, f"{pattern!r} in what it says", deadline_s=60)

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        return self.process.wait(60)


@contextmanager
def tuner(folder: Path, *options: str) -> Iterator[Running]:
    """`autotune study study.yaml` in `folder`, in a session of its own as a terminal would start it."""
    err = folder / "stderr.txt"
    argv = [sys.executable, "-m", "autotune.cli", "study", "study.yaml", *options]
    with err.open("wb") as stderr:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            start_new_session=True,
            env={**os.environ, "CI": "1"},
        )
        try:
            yield Running(process=process, run=RunDirectory(folder / "runs/small"), err=err)
        finally:
            process.kill()
            process.wait(60)


def trial_files(run: RunDirectory) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.path.glob("trials/*/trial.json")}


def assert_went_on(run: RunDirectory, before: dict[Path, bytes], *, budget: int) -> None:
    """Nothing that was finished was lost or touched, nothing was launched twice, and the budget was kept."""
    after = trial_files(run)
    assert before.items() <= after.items()
    launched = [trial for trial in run.trials() if trial.outcome is not Outcome.RULED_OUT]
    assert len(launched) == budget
    assert len({trial.fingerprint for trial in launched}) == budget
    assert run.summary().finished


@pytest.mark.integration
def test_ctrl_c_keeps_what_is_finished_and_meanwhile_no_second_tuner_gets_in(
    autotune: Autotune, tmp_path: Path
) -> None:
    write_study(tmp_path, ("trials: 3", "trials: 5000"))
    with tuner(tmp_path) as running:
        running.wait_for(r"^trial 0: ")
        write_study(tmp_path)  # a small budget, lest a second tuner that does get in go on for minutes
        second = autotune("study", "study.yaml", "--resume")
        assert second.code == ExitCode.BAD_INPUT
        assert "another autotune works on" in second.err
        assert running.end(signal.SIGINT) == ExitCode.INTERRUPTED
    last = running.err.read_text().splitlines()[-2:]
    assert last == ["autotune: interrupted; finished trials are kept", "  hint: go on with --resume"]
    before = trial_files(running.run)
    assert running.run.summary().stop_reason == "interrupted"
    assert not running.run.best.exists()
    launched = sum(trial.outcome is not Outcome.RULED_OUT for trial in running.run.trials())
    assert launched >= 1
    write_study(tmp_path, ("trials: 3", f"trials: {launched + 2}"))
    assert autotune("study", "study.yaml", "--resume").code == ExitCode.OK
    assert_went_on(running.run, before, budget=launched + 2)


@pytest.mark.integration
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, ExitCode.INTERRUPTED),
        (signal.SIGTERM, ExitCode.INTERRUPTED),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
    ids=["ctrl-c", "terminated", "killed"],
)
def test_a_tuner_ended_in_the_middle_of_a_trial_leaves_no_process_and_can_go_on(
    autotune: Autotune, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    mark = f"mark-{uuid.uuid4()}"
    named = ("max_model_len: 512", f"max_model_len: 512, served_model_name: {mark}")
    write_study(tmp_path, SERVER_FACE, named, ("trials: 3", "trials: 2"))
    with tuner(tmp_path) as running:
        running.wait_for(r"^trial [1-9]\d*, .*: measuring")  # 0 is the reference, and finished
        family = psutil.Process(running.process.pid).children(recursive=True)
        assert len(marked(mark)) == 1
        assert len(family) >= 3  # keeper, engine, load client
        assert running.end(number) == code
    wait_until(lambda: not marked(mark), "the end of the engine")
    wait_until(lambda: all(gone(process.pid) for process in family), "the end of all that the tuner started")
    before = trial_files(running.run)
    assert len(before) >= 1
    assert autotune("study", "study.yaml", "--resume").code == ExitCode.OK
    assert_went_on(running.run, before, budget=2)
    assert marked(mark) == []


def marked(mark: str) -> list[int]:
    """Processes with `mark` on their command line."""
    return [
        process.pid for process in psutil.process_iter(["cmdline"]) if mark in " ".join(process.info["cmdline"] or ())
    ]
