"""scripts/gpu_check.sh fails loudly wherever there is no engine on a GPU; what it needs one for can't be shown here."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.integration


def ran(tmp_path: Path, **env: str) -> tuple[int, str]:
    done = subprocess.run(
        [str(ROOT / "scripts/gpu_check.sh"), str(tmp_path / "out")],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        env={**os.environ, "PATH": f"{tmp_path}/bin:/usr/bin:/bin", **env},
    )
    return done.returncode, done.stdout + done.stderr


def program(tmp_path: Path, name: str, text: str) -> str:
    path = tmp_path / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_without_a_gpu_it_fails_and_says_why(tmp_path: Path) -> None:
    assert ran(tmp_path) == (1, "FAIL: there is no nvidia-smi: this needs an NVIDIA GPU\n")
    program(tmp_path, "nvidia-smi", "exit 9")
    assert ran(tmp_path) == (1, "FAIL: nvidia-smi finds no GPU\n")


def test_without_an_engine_it_fails_and_says_why(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo GPU")
    code, said = ran(tmp_path, AUTOTUNE=str(ROOT / ".venv/bin/autotune"))
    assert (code, said.startswith("FAIL: there is neither trtllm-serve nor vllm")) == (1, True)


def test_an_image_that_is_not_here_fails_with_what_fetches_it(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo GPU")
    autotune = str(ROOT / ".venv/bin/autotune")
    program(tmp_path, "docker", "exit 1")
    code, said = ran(tmp_path, AUTOTUNE=autotune, IMAGE="nvcr.io/nvidia/tensorrt-llm/release:1.2.1")
    assert (code, said) == (1, "FAIL: the image is not here: docker pull nvcr.io/nvidia/tensorrt-llm/release:1.2.1\n")


def test_an_image_in_which_no_model_can_be_made_fails_and_says_so(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo GPU")
    program(tmp_path, "docker", '[ "$1" = image ]')
    autotune = str(ROOT / ".venv/bin/autotune")
    code, said = ran(tmp_path, AUTOTUNE=autotune, IMAGE="nvcr.io/nvidia/tensorrt-llm/release:1.2.1")
    assert (code, said.startswith("FAIL: the model could not be made")) == (1, True)


def test_a_stand_in_does_not_pass_for_an_engine(tmp_path: Path) -> None:
    program(tmp_path, "nvidia-smi", "echo GPU")
    stand_in = f'exec {ROOT}/.venv/bin/python -m autotune.engines.simulated.trtllm "$@"'
    command = program(tmp_path, "trtllm-serve", stand_in)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    code, said = ran(tmp_path, COMMAND=command, MODEL=str(tmp_path / "model"), LOAD_S="1")
    assert code == 1
    assert "the study did not end well" in said
