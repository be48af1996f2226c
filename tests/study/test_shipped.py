from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from autotune.study import load_study, shipped_description, shipped_objectives, shipped_spaces
from tests.study.writing import write

ROOT = Path(__file__).parents[2]


def test_names_are_paths_without_suffix() -> None:
    assert set(shipped_spaces()) == {
        "vllm/default",
        "vllm/throughput",
        "vllm/latency",
        "vllm/cpu",
        "tensorrt_llm/default",
        "triton/default",
    }
    assert set(shipped_objectives()) == {
        *("chat", "chat-sessions", "rag", "rag-documents", "summarise", "code-completion", "batch-offline"),
        *("prefill-heavy", "decode-heavy", "mixed", "cpu-smoke"),
    }


@pytest.mark.parametrize(
    "path", [*shipped_spaces().values(), *shipped_objectives().values()], ids=lambda path: path.stem
)
def test_every_file_describes_itself_in_one_line(path: Path) -> None:
    description = shipped_description(path)
    assert description
    assert "\n" not in description
    assert len(description) <= 110


@pytest.mark.parametrize("space", shipped_spaces())
@pytest.mark.parametrize("objective", shipped_objectives())
def test_every_pair_makes_a_study(tmp_path: Path, space: str, objective: str) -> None:
    kind = space.partition("/")[0]
    text = f"name: x\nmodel: m\nengine: {{kind: {kind}}}\nsearch_space: {space}\nobjective: {objective}\n"
    spec = load_study(write(tmp_path, text))
    assert (spec.search_space.name, spec.objective.name) == (space, objective)
    assert all(parameter.why for parameter in spec.search_space.parameters)


@pytest.mark.parametrize("path", shipped_objectives().values(), ids=lambda path: path.stem)
def test_every_objective_is_named_as_its_file(path: Path) -> None:
    assert yaml.safe_load(path.read_text())["name"] == path.stem


def test_an_installed_package_finds_the_files_inside_itself(tmp_path: Path) -> None:
    """As in a wheel: no checkout around the package, the files under `autotune/shipped`."""
    for folder in ("study", "records"):
        shutil.copytree(ROOT / "autotune" / folder, tmp_path / "autotune" / folder)
    for name in ("__init__.py", "errors.py"):
        shutil.copy(ROOT / "autotune" / name, tmp_path / "autotune" / name)
    for kind in ("search_spaces", "objectives"):
        shutil.copytree(ROOT / kind, tmp_path / "autotune/shipped" / kind)
    program = "from autotune.study import *; print(shipped_spaces()['vllm/cpu'], shipped_objectives()['chat'])"
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    inside = tmp_path / "autotune/shipped"
    assert done.stdout.split() == [str(inside / "search_spaces/vllm/cpu.yaml"), str(inside / "objectives/chat.yaml")]
