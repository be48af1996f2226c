"""The wheel as a user gets it: installed into an empty environment, run from an empty folder, far from the checkout."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from autotune import __version__

pytestmark = [pytest.mark.integration, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
DATA = {
    "autotune/py.typed",
    "autotune/engines/vllm/failures.yaml",
    "autotune/engines/vllm/parameters.json",
    "autotune/models/data/gpus.json",
    "autotune/models/data/models.json",
    "autotune/report/page/page.css",
    "autotune/report/page/page.js",
    "autotune/study/schemas/objective.json",
    "autotune/study/schemas/search_space.json",
    "autotune/study/schemas/study.json",
}
HEAVY = ("numba", "numpy", "optuna", "plotly", "pydantic", "rich", "sqlalchemy", "starlette", "uvloop", "yaml")


def outside(argv: list[str], cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a program that knows nothing of this checkout."""
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return subprocess.run(argv, cwd=cwd, env=env, capture_output=True, text=True, check=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """A wheel, the environment it is installed in, and an empty folder to work in."""

    wheel: Path
    bin: Path
    folder: Path

    def autotune(self, *arguments: str) -> str:
        """What `autotune …` prints on stdout; it must succeed."""
        done = outside([str(self.bin / "autotune"), *arguments], self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def python(self, code: str) -> str:
        done = outside([str(self.bin / "python"), "-c", code], self.folder)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Built and installed once: resolving the dependencies takes most of a minute."""
    base = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(base / "dist"), str(ROOT)]
    folder = base / "elsewhere"
    folder.mkdir()
    venv = base / "venv"
    wheel = base / "dist" / f"autotune_llm-{__version__}-py3-none-any.whl"
    for argv in (
        build,
        [sys.executable, "-m", "venv", str(venv)],
        [str(venv / "bin/pip"), "install", "--quiet", "--disable-pip-version-check", str(wheel)],
    ):
        done = outside(argv, folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return Installed(wheel=wheel, bin=venv / "bin", folder=folder)


def test_the_wheel_carries_its_data_and_nothing_but_the_package(installed: Installed) -> None:
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    spaces = {f"autotune/shipped/{path.relative_to(ROOT)}" for path in (ROOT / "search_spaces").rglob("*.yaml")}
    objectives = {f"autotune/shipped/{path.relative_to(ROOT)}" for path in (ROOT / "objectives").rglob("*.yaml")}
    assert len(spaces) >= 4
    assert len(objectives) >= 5
    assert names >= DATA | spaces | objectives
    assert {name.partition("/")[0] for name in names} == {"autotune", f"autotune_llm-{__version__}.dist-info"}


def test_it_runs_from_where_it_is_installed(installed: Installed) -> None:
    assert installed.autotune("--version") == f"autotune {__version__}\n"
    where = Path(installed.python("import autotune; print(autotune.__file__)").strip())
    assert where.is_relative_to(installed.bin.parent)


def test_no_engine_comes_with_it(installed: Installed) -> None:
    code = "import importlib.metadata as m, json; print(json.dumps([d.metadata['Name'] for d in m.distributions()]))"
    names = {name.lower() for name in json.loads(installed.python(code))}
    assert "optuna" in names
    assert (
        names & {"torch", "vllm", "tensorrt-llm", "tensorrt_llm", "triton", "transformers", "optuna-dashboard"} == set()
    )


def test_shipped_spaces_objectives_and_schemas_are_found(installed: Installed) -> None:
    spaces = [line.split()[0] for line in installed.autotune("spaces").splitlines()]
    objectives = [line.split()[0] for line in installed.autotune("objectives").splitlines()]
    assert {"vllm/default", "vllm/cpu"} <= set(spaces)
    assert {"chat", "cpu-smoke"} <= set(objectives)
    assert installed.autotune("spaces", "vllm/default") == (ROOT / "search_spaces/vllm/default.yaml").read_text()
    for kind in ("study", "search_space", "objective"):
        assert json.loads(installed.autotune("schema", kind))["type"] == "object"


def test_a_study_runs_to_its_files(installed: Installed) -> None:
    study = (ROOT / "studies/quickstart.yaml").read_text()
    assert study.count("budget: {trials: 30}") == 1
    (installed.folder / "study.yaml").write_text(
        study.replace("budget: {trials: 30}", "budget: {trials: 3}").replace("soak_s: 120", "soak_s: 10")
    )
    shown = installed.autotune("study", "study.yaml")
    best = installed.folder / "runs/quickstart/best"
    assert "SIMULATED" in shown
    assert {path.name for path in best.iterdir()} == {"best.json", "serve.sh", "vllm.yaml"}
    evidence = json.loads((best / "best.json").read_text())
    assert (evidence["simulated"], evidence["confirmed"]) == (True, False)


def test_help_loads_nothing_heavy(installed: Installed) -> None:
    code = f"""
import sys
from autotune.cli import main
sys.argv = ["autotune", "--help"]
try:
    main()
except SystemExit as end:
    assert end.code == 0, end
print("loaded:", *(name for name in {HEAVY!r} if name in sys.modules))
"""
    *text, last = installed.python(code).splitlines()
    assert any("Exit codes" in line for line in text)
    assert last == "loaded:"
