"""Faults and signals on a real vLLM: nothing of it is left behind, and the trial says what happened.

Three launches here belong to CI; the rest is for `make test-vllm-full`. A cell takes half a minute to one and a half.
"""

from __future__ import annotations

import re
import signal
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from autotune.engines.keeper import mapped
from autotune.errors import ExitCode
from tests.engines.children import gone, wait_until
from tests.reliability.studies import Place, Tuner, tuning

pytestmark = pytest.mark.timeout(900)

STUDY: Mapping[str, Any] = {
    "name": "s",
    "search_space": {"engine": "vllm", "parameters": {"max_num_seqs": {"choice": [4, 8]}}},
    "objective": {
        "name": "quick",
        "maximize": "output_tok_per_s",
        "slos": {"ttft_ms.p75": 60_000, "error_ratio": 0.9},
        "workload": {"input_tokens": {"uniform": [32, 64]}, "output_tokens": {"uniform": [8, 16]}},
        "load": {"concurrency": 4, "duration_s": 8, "warmup_s": 1},
        "confidence": 0.8,
    },
    "finals": False,
}
ENGINE: Mapping[str, Any] = {
    "kind": "vllm",
    "args": {"max_num_seqs": 4, "max_num_batched_tokens": 256, "max_model_len": 256, "enforce_eager": True},
    "env": {"HF_HUB_OFFLINE": "1", "VLLM_CPU_KVCACHE_SPACE": "1"},
    "startup_timeout_s": 240,
}
PHASES = {
    "start-up": r"trial 0, .*: loading weights",
    "canary": r"trial 0, .*: canary",
    "load": r"trial 0, .*: measuring",
    "stop": r"trial 0, .*: stopping",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """`number` goes to the process whose title has `target` (None: the tuner) when trial 0 has come to `phase`.

    `code` is what the tuner then ends with; None: it tries the trial again and measures it.
    """

    phase: str
    number: signal.Signals
    target: str | None = None
    code: int | None = None

    @property
    def id(self) -> str:
        return f"{self.phase}-{self.number.name}-{self.target or 'tuner'}"


IN_CI = (
    Cell(phase="load", number=signal.SIGKILL, code=-signal.SIGKILL),
    Cell(phase="load", number=signal.SIGKILL, target="Worker"),
    Cell(phase="start-up", number=signal.SIGTERM, code=ExitCode.INTERRUPTED),
)  # fmt: skip
FULL = (
    Cell(phase="start-up", number=signal.SIGINT, code=ExitCode.INTERRUPTED),
    Cell(phase="canary", number=signal.SIGKILL, code=-signal.SIGKILL),
    Cell(phase="stop", number=signal.SIGKILL, code=-signal.SIGKILL),
    Cell(phase="load", number=signal.SIGTERM, code=ExitCode.INTERRUPTED),
    Cell(phase="load", number=signal.SIGKILL, target="EngineCore"),
    Cell(phase="load", number=signal.SIGKILL, target="vllm serve"),
    Cell(phase="load", number=signal.SIGKILL, target="keeper.py"),
    Cell(phase="load", number=signal.SIGKILL, target="autotune.load.client"),
    Cell(phase="start-up", number=signal.SIGKILL, target="vllm serve"),
)  # fmt: skip


def write_study(venv: Path, folder: Path, *, model: str = "", **engine: Any) -> Path:
    path = folder / "study.yaml"
    whole = {**ENGINE, "command": str(venv / "bin/vllm"), **engine}
    study = {**STUDY, "model": model or str(venv / "tiny-model"), "engine": whole, "budget": {"trials": 1}}
    path.write_text(yaml.safe_dump(study))
    return path


def traces() -> set[Path]:
    """What vLLM is known to leave behind, and nobody who lives holds: others work on this machine too."""
    held = {Path("/dev/shm", name) for name in mapped(psutil.pids())}
    return {*Path("/dev/shm").iterdir(), *Path(tempfile.gettempdir()).glob("vllm_dist_*")} - held


def family(tuner: Tuner) -> list[psutil.Process]:
    return psutil.Process(tuner.process.pid).children(recursive=True)


def named(processes: list[psutil.Process], title: str) -> psutil.Process:
    return next(process for process in processes if title in " ".join(process.cmdline()))


def survive(cell: Cell, venv: Path, folder: Path) -> None:
    before, place = traces(), Place(folder)
    with tuning(place, write_study(venv, folder)) as tuner:
        tuner.wait_for(PHASES[cell.phase])
        if cell.phase == "start-up":  # the worker has started, and SIGTERM is lost by now
            log = place.run / "trials" / "0000" / "engine.log"
            wait_until(lambda: "distributed_init_method" in log.read_text(), "the worker", deadline_s=240)
        seen = family(tuner)
        target = tuner.process if cell.target is None else named(seen, cell.target)
        target.send_signal(cell.number)
        code = tuner.process.wait(600)
        assert code == cell.code or cell.code is None, tuner.text
        wait_until(lambda: all(gone(process.pid) for process in seen), "the end of all of them", deadline_s=60)
    if cell.code is None:
        # Engine and client share this machine's cores: on a busy one the client may be too late to be trusted.
        assert place.outcomes() in (["ok"], ["client_limited"]), tuner.text
        assert re.search(r"trial 0(, attempt 1:| is tried again)", tuner.text), tuner.text
    else:
        assert place.outcomes() == [], tuner.text
    wait_until(lambda: traces() <= before, "the end of its shared memory", deadline_s=20)
    assert list(place.temporary.glob("vllm_dist_*")) == []


@pytest.mark.vllm
@pytest.mark.parametrize("cell", IN_CI, ids=lambda cell: cell.id)
def test_a_real_vllm_leaves_nothing(cell: Cell, vllm_venv: Path, tmp_path: Path) -> None:
    survive(cell, vllm_venv, tmp_path)


@pytest.mark.vllm_full
@pytest.mark.parametrize("cell", FULL, ids=lambda cell: cell.id)
def test_a_real_vllm_leaves_nothing_whatever_befalls_it(cell: Cell, vllm_venv: Path, tmp_path: Path) -> None:
    survive(cell, vllm_venv, tmp_path)


@pytest.mark.vllm_full
def test_a_killed_tuner_goes_on_where_it_was(vllm_venv: Path, tmp_path: Path) -> None:
    place, study = Place(tmp_path), write_study(vllm_venv, tmp_path)
    with tuning(place, study) as tuner:
        tuner.wait_for(PHASES["load"])
        tuner.process.kill()
    with tuning(place, study, "--resume") as tuner:
        assert tuner.process.wait(600) == ExitCode.OK, tuner.text
    assert place.outcomes() == ["ok"]


@pytest.mark.vllm_full
def test_a_model_that_is_whole_in_the_hubs_cache_is_launched_by_its_name_without_a_network(
    vllm_venv: Path, tmp_path: Path
) -> None:
    repository = tmp_path / "hf" / "hub" / "models--org--tiny"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text("0123456789abcdef")
    (repository / "snapshots").mkdir()
    (repository / "snapshots" / "0123456789abcdef").symlink_to(vllm_venv / "tiny-model")
    env = {"HF_HOME": str(tmp_path / "hf"), "VLLM_CPU_KVCACHE_SPACE": "1"}
    place = Place(tmp_path)
    with tuning(place, write_study(vllm_venv, tmp_path, model="org/tiny", env=env)) as tuner:
        assert tuner.process.wait(600) == ExitCode.OK, tuner.text
    (record,) = place.records().values()
    assert '"model_revision": "0123456789abcdef"' in record


@pytest.mark.vllm_full
def test_a_kv_cache_that_is_too_small_becomes_a_number(vllm_venv: Path, tmp_path: Path) -> None:
    args = {**ENGINE["args"], "max_model_len": 4096, "kv_cache_memory_bytes": 2**22}
    env = {"HF_HUB_OFFLINE": "1"}  # VLLM_CPU_KVCACHE_SPACE would win over the argument
    place = Place(tmp_path)
    with tuning(place, write_study(vllm_venv, tmp_path, args=args, env=env)) as tuner:
        assert tuner.process.wait(600) == ExitCode.NOTHING_FEASIBLE, tuner.text
    (record,) = place.records().values()
    assert place.outcomes() == ["oom_startup"]
    assert '"max_model_len_that_fits"' in record
