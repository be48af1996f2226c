"""One study a GPU, between processes and users; and nothing that lies in a shared folder is trusted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.engines.hardware import Gpu
from autotune.errors import EnvironmentFault
from autotune.trial.gpu_locks import gpus_held, lock_name
from tests.engines.children import gone, wait_until

UUID = "GPU-1b2c3d4e-0000-1111-2222-333344445555"
GPU, OTHER = Gpu(id="0", uuid=UUID), Gpu(id="1", uuid=UUID.replace("1b2c", "ffff"))

HOLDS = """
import subprocess, sys
from autotune.engines.hardware import Gpu
from autotune.trial.gpu_locks import gpus_held
with gpus_held([Gpu(id="0", uuid=sys.argv[1])], "the other", tell=print):
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], close_fds=False)
    print(engine.pid, flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_GPU_LOCKS", str(tmp_path / "locks"))
    return tmp_path / "locks"


@contextmanager
def other_study() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Another tuner that holds GPU 0, and the pid of an engine that it started without closing descriptors."""
    argv = [sys.executable, "-c", HOLDS, UUID]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tuner:
        assert tuner.stdout is not None
        engine = int(tuner.stdout.readline())
        try:
            yield tuner, engine
        finally:
            tuner.kill()
            os.kill(engine, signal.SIGKILL)


@pytest.mark.integration
def test_a_second_study_is_refused_and_told_who_holds_the_gpu() -> None:
    with other_study() as (tuner, _), pytest.raises(EnvironmentFault) as caught, gpus_held([GPU], "mine", tell=print):
        pass
    assert "GPU 0 is held by study the other" in caught.value.message
    assert f"pid {tuner.pid}" in caught.value.message
    assert "when_busy" in caught.value.hint


@pytest.mark.integration
def test_a_killed_tuner_gives_its_gpus_back_although_its_engine_lives() -> None:
    with other_study() as (tuner, engine):
        tuner.kill()
        tuner.wait()
        assert not gone(engine)
        with gpus_held([GPU], "mine", tell=print):
            pass


@pytest.mark.integration
def test_a_study_that_waits_goes_on_when_the_other_ends() -> None:
    told: list[str] = []
    entered = threading.Event()

    def wait() -> None:
        with gpus_held([OTHER, GPU], "mine", "wait", tell=told.append):
            entered.set()

    with other_study() as (tuner, _):
        waiting = threading.Thread(target=wait)
        waiting.start()
        wait_until(lambda: told, "the word that it waits")
        assert not entered.is_set()
        tuner.kill()
        waiting.join(20)
    assert entered.is_set()
    assert "waiting" in told[0]


def test_studies_on_other_gpus_and_studies_without_any_are_not_held_up() -> None:
    with gpus_held([GPU], "a", tell=print), gpus_held([OTHER], "b", tell=print), gpus_held([], "c", tell=print):
        pass


def test_a_gpu_named_twice_is_held_once_and_can_be_taken_again() -> None:
    for _ in range(2):
        with gpus_held([GPU, Gpu(id="GPU-1b2c", uuid=UUID)], "a", tell=print):
            pass


def test_the_folder_and_its_files_are_for_all_users_whatever_the_umask(folder: Path) -> None:
    before = os.umask(0o077)
    try:
        with gpus_held([GPU], "a", tell=print):
            pass
    finally:
        os.umask(before)
    assert folder.stat().st_mode & 0o7777 == 0o1777
    assert (folder / lock_name(GPU)).stat().st_mode & 0o777 == 0o666


def test_a_planted_link_is_not_followed(folder: Path, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("keep")
    folder.mkdir()
    (folder / lock_name(GPU)).symlink_to(precious)
    with pytest.raises(EnvironmentFault, match="can't be kept"), gpus_held([GPU], "a", tell=print):
        pass
    assert precious.read_text() == "keep"


def test_a_folder_that_is_a_link_is_refused(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    folder.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EnvironmentFault, match="can't be kept"), gpus_held([GPU], "a", tell=print):
        pass
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.parametrize("plant", [os.mkfifo, os.mkdir])
def test_what_is_no_plain_file_neither_hangs_nor_locks(folder: Path, plant: object) -> None:
    folder.mkdir()
    assert callable(plant)
    plant(folder / lock_name(GPU))
    with pytest.raises(EnvironmentFault), gpus_held([GPU], "a", tell=print):
        pass


@pytest.mark.parametrize(
    "written",
    ["", "{", "[]", '{"pid": 1}', json.dumps({"study": "\x1b[2Jx" * 99, "pid": 1, "user": 0, "since_utc": "now"})],
)
def test_what_others_wrote_into_a_lock_is_shown_at_most_as_plain_text(folder: Path, written: str) -> None:
    with gpus_held([GPU], "a", tell=print):
        (folder / lock_name(GPU)).write_text(written)
        with pytest.raises(EnvironmentFault) as caught, gpus_held([GPU], "b", tell=print):
            pass
    assert "\x1b" not in caught.value.message
    assert len(caught.value.message) < 300


def test_names_hold_no_path() -> None:
    assert "/" not in lock_name(Gpu(id="../../etc/passwd"))
    assert lock_name(Gpu(id="3")) == "index-3.lock"
