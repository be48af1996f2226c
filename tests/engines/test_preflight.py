"""vLLM's own configuration is asked in a child, and nothing that the child does can harm a study."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from autotune.engines.base import Preflight, Refusal, Resolved
from autotune.engines.preflight import RESTARTS
from autotune.engines.vllm.engine import VllmEngine
from autotune.engines.vllm.preflight import child_in, refusal_of, vllm_preflight
from autotune.records.spec import EngineKind, EngineSpec
from autotune.records.trial import Fault, Outcome
from tests.builders import study_spec
from tests.engines.children import gone, wait_for_lines, wait_until
from tests.engines.stub_vllm import write_vllm

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]


@contextmanager
def asking(
    folder: Path, told: list[str], *, timeout_s: float = 20.0, redacted: Sequence[str] = (), **env: str
) -> Iterator[Preflight]:
    whole = {"PATH": os.environ["PATH"], "PYTHONPATH": str(folder), **env}
    before = set(psutil.Process().children())  # other tests of this process may keep a server for all of theirs
    with vllm_preflight(
        child_in(Path(sys.executable)),
        "org/m",
        env=whole,
        redacted=redacted,
        tell=told.append,
        answer_timeout_s=timeout_s,
    ) as preflight:
        yield preflight
    assert set(psutil.Process().children()) <= before


@pytest.mark.parametrize("layout", ["0.10", "0.32"])
def test_vllm_says_what_it_resolves_and_what_it_refuses(tmp_path: Path, layout: str) -> None:
    told: list[str] = []
    with asking(write_vllm(tmp_path, layout), told) as preflight:
        accepted = preflight.ask({"max_num_seqs": 8})
        refused = preflight.ask({"max_num_seqs": 64, "max_num_batched_tokens": 32})
    assert isinstance(accepted, Resolved)
    assert accepted.settings == {
        "max_model_len": 4096,
        "dtype": "<class 'complex'>",
        "max_num_seqs": 8,
        "enable_chunked_prefill": True,
        "kv_cache_dtype": "auto",
    }
    assert isinstance(refused, Refusal)
    assert refused.failure.cause == (
        "Value error, max_num_batched_tokens (32) must be greater than or equal to max_num_seqs (64)."
    )
    assert (refused.failure.outcome, refused.failure.fault) == (Outcome.BAD_CONFIG, Fault.CANDIDATE)
    assert told == []


def test_what_vllm_prints_is_no_answer(tmp_path: Path) -> None:
    noisy = "import os\nprint('junk')\nos.write(1, b'{\"event\": \"refused\"}\\n')\n"
    told: list[str] = []
    with asking(write_vllm(tmp_path, on_import=noisy), told) as preflight:
        assert isinstance(preflight.ask({"mode": "print"}), Resolved)
        assert isinstance(preflight.ask({"max_num_seqs": 9000}), Refusal)


def test_a_pythons_start_up_may_print_before_the_child_does(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(r"import os; os.write(1, b'hello\n{}\n[1]\n')")
    with asking(write_vllm(tmp_path), []) as preflight:
        assert isinstance(preflight.ask({}), Resolved)


def test_a_flag_that_this_vllm_lacks_is_the_users_set_up(tmp_path: Path) -> None:
    with asking(write_vllm(tmp_path), []) as preflight:
        answer = preflight.ask({"max_num_seqz": 8})
        assert isinstance(preflight.ask({}), Resolved)
    assert isinstance(answer, Refusal)
    assert answer.failure.fault is Fault.SETUP
    assert answer.failure.cause == "vllm serve: error: unrecognized arguments: --max-num-seqz"


def test_a_model_that_is_not_there_is_the_users_set_up(tmp_path: Path) -> None:
    with asking(write_vllm(tmp_path), []) as preflight:
        answer = preflight.ask({"mode": "missing"})
    assert isinstance(answer, Refusal)
    assert answer.failure.fault is Fault.SETUP
    assert "org/m is not a local folder" in answer.failure.cause


def test_an_error_that_is_no_refusal_says_nothing(tmp_path: Path) -> None:
    with asking(write_vllm(tmp_path), []) as preflight:
        assert preflight.ask({"mode": "odd"}) is None
        unlisted = preflight.ask({"mode": "unlisted"})
    assert isinstance(unlisted, Refusal)
    assert "no rule knows this" in unlisted.failure.cause


def test_what_the_machine_causes_refuses_nothing() -> None:
    assert refusal_of("OSError: [Errno 98] Address already in use", sure=True) is None
    assert refusal_of("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB.", sure=True) is None


@pytest.mark.parametrize("mode", ["hang", "die"])
def test_a_child_that_is_lost_is_replaced_and_given_up_in_the_end(tmp_path: Path, mode: str) -> None:
    told: list[str] = []
    with asking(write_vllm(tmp_path), told, timeout_s=1.0) as preflight:
        assert isinstance(preflight.ask({}), Resolved)  # the first answer has more time, later ones the timeout
        assert preflight.ask({"mode": mode}) is None
        for _ in range(RESTARTS):
            assert isinstance(preflight.ask({}), Resolved)
            assert told == []
            assert preflight.ask({"mode": mode}) is None
        assert len(told) == 1
        assert "3 times" in told[0]
        assert preflight.ask({}) is None
    assert len(told) == 1


@pytest.mark.parametrize(
    ("layout", "on_import", "says"),
    [
        ("moved", "", "no make_arg_parser in"),
        ("0.32", "raise RuntimeError('operator torchvision::nms does not exist')", "torchvision::nms"),
        ("0.32", "import sys; sys.exit(3)", "SystemExit"),
    ],
)
def test_a_vllm_that_cannot_be_asked_is_a_warning(tmp_path: Path, layout: str, on_import: str, says: str) -> None:
    told: list[str] = []
    with asking(write_vllm(tmp_path, layout, on_import=on_import), told) as preflight:
        assert preflight.ask({}) is None
        assert preflight.ask({}) is None
    assert len(told) == 1
    assert says in told[0]


def test_a_python_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    told: list[str] = []
    with vllm_preflight(child_in(tmp_path / "python"), "m", env={}, tell=told.append) as preflight:
        assert preflight.ask({}) is None
    assert "can't be started" in told[0]


def test_each_question_finds_the_environment_of_the_first(tmp_path: Path) -> None:
    with asking(write_vllm(tmp_path), []) as preflight:
        assert [type(preflight.ask({"mode": "leave"})) for _ in range(2)] == [Resolved, Resolved]


def test_a_child_that_came_to_hold_gpu_memory_is_ended(tmp_path: Path) -> None:
    torch = "class cuda:\n    is_initialized = staticmethod(lambda: True)\n"
    (tmp_path / "torch.py").write_text(torch)
    told: list[str] = []
    with asking(write_vllm(tmp_path, on_import="import torch"), told) as preflight:
        assert preflight.ask({}) is None
        assert not [child for child in psutil.Process().children() if "preflight_child" in " ".join(child.cmdline())]
    assert "GPU memory" in told[0]


def test_secrets_and_our_own_modules_stay_out(tmp_path: Path) -> None:
    shadow = "import importlib.util\nassert importlib.util.find_spec('incumbent') is None\n"
    with asking(write_vllm(tmp_path, on_import=shadow), [], redacted=["hush"], SECRET="hush") as preflight:
        answer = preflight.ask({"mode": "secret"})
    assert isinstance(answer, Refusal)
    assert "hush" not in str(answer)
    assert "the token is" in answer.failure.cause


def test_starting_does_not_wait_for_the_import(tmp_path: Path) -> None:
    """The engine's first launch goes on meanwhile; and leaving ends an import that never would."""
    release = tmp_path / "release"
    os.mkfifo(release)
    with asking(write_vllm(tmp_path, on_import=f"open({str(release)!r}).read()"), []) as preflight:
        release.write_text("")  # opens only once the import has come there
        assert isinstance(preflight.ask({}), Resolved)
    with asking(tmp_path, []):
        pass


TUNER = """
import os, sys, time
from pathlib import Path
from autotune.engines.vllm.preflight import child_in, vllm_preflight
with vllm_preflight(child_in(Path(sys.executable)), "m", env={"PYTHONPATH": sys.argv[1]}, tell=print):
    time.sleep(600)
"""


def test_the_child_dies_with_a_killed_tuner_in_the_middle_of_its_import(tmp_path: Path) -> None:
    started = tmp_path / "started"
    hanging = f"import os, time\nopen({str(started)!r}, 'w').write(f'{{os.getpid()}}\\n')\ntime.sleep(600)\n"
    write_vllm(tmp_path, on_import=hanging)
    with subprocess.Popen([sys.executable, "-c", TUNER, str(tmp_path)], cwd=ROOT) as tuner:
        child = int(wait_for_lines(started)[0])
        tuner.kill()
    wait_until(lambda: gone(child), "the end of the child after its tuner's")


def engine(folder: Path, command: Path, **env: str) -> VllmEngine:
    spec = EngineSpec(kind=EngineKind.VLLM, command=(str(command),), env={"PYTHONPATH": str(folder), **env})
    return VllmEngine(study_spec(model="org/m", engine=spec))


def test_the_engine_asks_the_python_that_its_program_names(tmp_path: Path) -> None:
    program = write_vllm(tmp_path) / "vllm-program"
    program.write_text(f"#!{sys.executable}\n")
    program.chmod(0o755)
    seen = "import os\nassert os.environ['CUDA_VISIBLE_DEVICES'] == 'GPU-1,GPU-2'\n"
    write_vllm(tmp_path, on_import=seen)
    with engine(tmp_path, program).preflight(gpus=("GPU-1", "GPU-2"), tell=print) as preflight:
        assert preflight is not None
        assert isinstance(preflight.ask({}), Resolved)


def test_a_program_that_is_not_there_is_the_users_set_up(tmp_path: Path) -> None:
    with engine(tmp_path, tmp_path / "nothing").preflight(gpus=(), tell=print) as preflight:
        assert preflight is not None
        answer = preflight.ask({})
    assert isinstance(answer, Refusal)
    assert answer.failure.fault is Fault.SETUP


def test_a_program_that_names_no_python_is_not_asked(tmp_path: Path) -> None:
    program = tmp_path / "vllm"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    told: list[str] = []
    with engine(tmp_path, program).preflight(gpus=(), tell=told.append) as preflight:
        assert preflight is None
    assert "names no Python" in told[0]
