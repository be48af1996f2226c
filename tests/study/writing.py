"""A sound study as text, with lines to replace, and what the reader says of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from autotune.errors import ExitCode, StudyFileError
from autotune.study import load_study

SOUND = """\
name: test
model: some/model
engine:
  kind: vllm
  args: {max_model_len: 4096}
search_space:
  engine: vllm
  parameters:
    max_num_seqs: {int: [1, 64], log: true}
    block_size: {choice: [16, 32]}
  rules:
    - max_num_seqs >= 1
objective:
  maximize: output_tok_per_s
  slos: {ttft_ms.p90: 500, error_ratio: 0.01}
  workload: {input_tokens: 128, output_tokens: 32}
  load: {concurrency: 8}
budget: {trials: 5}
"""


def write(folder: Path, text: str | bytes, name: str = "study.yaml") -> Path:
    """Write a file below `folder` and return its path."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def changed(old: str, new: str) -> str:
    """Return the sound study with `old` replaced."""
    assert SOUND.count(old) == 1, old
    return SOUND.replace(old, new)


def refusal(path: Path) -> list[str]:
    """Return what is wrong with the study in `path`, without the file's name; nothing may be written beside it."""
    before = sorted(path.parent.rglob("*"))
    with pytest.raises(StudyFileError) as caught:
        load_study(path)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert sorted(path.parent.rglob("*")) == before
    return [line.removeprefix(f"{path}:") for line in caught.value.lines]
