"""Requests that can't be made are told when the study is read, before anything is launched."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import StudyFileError
from autotune.pipeline import read_study

STUDY = """\
name: test
model: {model}
engine: {{kind: simulated}}
search_space: vllm/default
objective:
  maximize: output_tok_per_s
  slos: {{ttft_ms.p90: 500}}
  workload: {workload}
  load: {load}
"""
LENGTHS = "input_tokens: 128, output_tokens: 32"


def read(folder: Path, workload: str, load: str = "{concurrency: 8}", **files: str) -> list[str]:
    """Return what is wrong with a study, without the name of its file."""
    for name, text in files.items():
        (folder / name).write_text(text)
    path = folder / "study.yaml"
    path.write_text(STUDY.format(model="meta-llama/Llama-3.1-8B-Instruct", workload=workload, load=load))
    try:
        read_study(path)
    except StudyFileError as error:
        return [line.removeprefix(f"{path}:") for line in error.lines]
    return []


@pytest.mark.parametrize(
    ("workload", "load", "told"),
    [
        ("{dataset: f, output_tokens: 5}", "{concurrency: 8}", ["8: objective.workload.dataset: {f}:1: not JSON"]),
        ("{lengths: f}", "{concurrency: 8}", ["8: objective.workload.lengths: {f}:2: 1 columns, 2 are needed"]),
        ("{}", "{trace: {file: f}}", ["9: objective.load.trace.file: {f}:1: not the header of a trace: what"]),
        (f"{{{LENGTHS}}}", "{poisson_rps: 0.001}", ["9: objective.load: no request would arrive after the warm-up"]),
    ],
)
def test_each_is_told_at_its_key(tmp_path: Path, workload: str, load: str, told: list[str]) -> None:
    found = read(tmp_path, workload, load, f="what\never")
    assert len(found) >= len(told)
    for line, wanted in zip(found, told, strict=False):
        assert line.startswith(wanted.replace("{f}", str(tmp_path / "f")))


def test_text_without_a_tokenizer_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    (line,) = read(tmp_path, f"{{{LENGTHS}, text: natural}}")
    assert line.startswith("8: objective.workload.text: there is no tokenizer.json of meta-llama/")


def test_sound_requests_of_every_load_are_read(tmp_path: Path) -> None:
    for load in (
        "{constant_rps: 3}",
        "{gamma: {rps: 3, burstiness: 4}}",
        "{bursts: {rps: 3, factor: 4, burst_s: 2, every_s: 9}}",
        "{ramp: {from_rps: 2, to_rps: 5}}",
        "{capacity: rps}",
    ):
        assert read(tmp_path, f"{{{LENGTHS}}}", load) == []
