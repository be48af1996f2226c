"""What the program prints survives a terminal that can't show it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.errors import ExitCode
from tests.runs import dozen, summary, write_run

pytestmark = pytest.mark.integration


def test_a_locale_without_unicode_gets_question_marks_not_a_traceback(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", dozen(), summary())
    done = subprocess.run(
        [sys.executable, "-m", "autotune.cli", "show", str(run.path)],
        env={**os.environ, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "Best: trial 5, 312 output tok/s (293?331)" in done.stdout


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_an_output_on_a_full_disk_is_told_in_a_sentence(tmp_path: Path, more: list[str]) -> None:
    run = write_run(tmp_path / "run", dozen(), summary())
    with Path("/dev/full").open("w") as full:
        argv = [sys.executable, "-m", "autotune.cli", "show", str(run.path), *more]
        done = subprocess.run(argv, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == ExitCode.ENVIRONMENT
    assert done.stderr == "autotune: the output can't be written: No space left on device\n"
