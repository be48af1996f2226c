"""A variant made by a real command: once, whole or not at all, and nothing of it outlives the tuner."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from autotune.engines.variants import missing_room, prepare_variant, variant_digest, variant_states
from autotune.engines.variants.cache import place_of
from autotune.errors import EnvironmentFault
from autotune.records.trial import Fault, Outcome, Phase
from autotune.records.variants import VariantSpec
from tests.engines.children import gone, wait_for_lines, wait_until
from tests.variants.conftest import Kitchen
from tests.variants.maker import checkpoint

pytestmark = pytest.mark.integration

TUNER = """
import sys
from pathlib import Path
from tests.variants.conftest import Kitchen
kitchen = Kitchen(Path(sys.argv[1]))
variant = kitchen.variant(how=sys.argv[2], resumes=sys.argv[3] == "resumes")
found = kitchen.prepare(variant, lambda text: print(text, flush=True))
print(found.checkpoint.path)
"""


def tuner(kitchen: Kitchen, how: str = "well", resumes: str = "") -> subprocess.Popen[str]:
    """Another autotune that prepares the same variant."""
    argv = [sys.executable, "-c", TUNER, str(kitchen.folder), how, resumes]
    return subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_it_is_made_once_and_then_found(kitchen: Kitchen) -> None:
    first, second = kitchen.prepare(kitchen.variant()), kitchen.prepare(kitchen.variant())
    assert first.failure is None
    path = Path(str(first.checkpoint.path))
    assert (path / "config.json").is_file()
    assert first.checkpoint.waited_s >= (first.checkpoint.prepare_s or 0) > 0
    assert (second.checkpoint.path, second.checkpoint.waited_s) == (str(path), 0.0)
    assert second.checkpoint.prepare_s == first.checkpoint.prepare_s
    assert str(path) in first.checkpoint.command
    assert (kitchen.count(), kitchen.cached()) == (1, [path.name])


def test_two_that_want_it_at_once_start_one_command(kitchen: Kitchen) -> None:
    with tuner(kitchen) as one, tuner(kitchen) as other:
        paths = {tuner.communicate(timeout=60)[0].splitlines()[-1] for tuner in (one, other)}
    assert len(paths) == 1
    assert Path(paths.pop(), "config.json").is_file()
    assert kitchen.count() == 1


def test_who_waited_takes_what_the_other_made(kitchen: Kitchen) -> None:
    variant = kitchen.variant()
    place = place_of(kitchen.spec(variant), str(variant_digest(kitchen.spec(variant), variant)))
    with ExitStack() as opened:
        with place.held(lambda _: None):
            waiting = opened.enter_context(tuner(kitchen))
            assert waiting.stdout is not None
            assert "another autotune is preparing it" in waiting.stdout.readline()
            place.start(keep=False)
            checkpoint(place.partial)
            place.seal(name="w8", command=(), prepare_s=1.0)
        out, _ = waiting.communicate(timeout=60)
    assert out.splitlines()[-1] == str(place.whole)
    assert kitchen.count() == 0


def test_a_variant_that_is_only_named_is_not_made(kitchen: Kitchen, tmp_path: Path) -> None:
    found = kitchen.prepare(VariantSpec(name="awq", model=str(tmp_path)))
    assert (found.checkpoint.path, found.checkpoint.prepare_s) == (str(tmp_path), None)


@pytest.mark.parametrize(
    ("how", "outcome", "cause"),
    [
        ("fails", Outcome.LAUNCH_FAILED, "ValueError: group size 128 does not divide 100 (exit code 1)"),
        ("cut-off", Outcome.LAUNCH_FAILED, "exit code 0, but model.safetensors is cut off or damaged"),
    ],
)
def test_a_command_that_fails_leaves_a_cause_and_nothing_else(
    kitchen: Kitchen, how: str, outcome: Outcome, cause: str
) -> None:
    found = kitchen.prepare(kitchen.variant(how=how))
    assert found.failure is not None
    assert found.checkpoint.path is None
    assert (found.failure.outcome, found.failure.phase) == (outcome, Phase.PREPARE)
    assert cause in found.failure.cause
    assert str(kitchen.log) in found.failure.remedy
    assert kitchen.cached() == []


def test_a_program_that_is_not_there_is_the_users_set_up(kitchen: Kitchen) -> None:
    found = kitchen.prepare(kitchen.variant(command=("/no/such/quantise", "{output}")))
    assert found.failure is not None
    assert found.failure.fault is Fault.SETUP
    assert "/no/such/quantise" in found.failure.cause


def test_one_that_takes_too_long_is_stopped(kitchen: Kitchen) -> None:
    found = kitchen.prepare(kitchen.variant(how="hangs-once", timeout_s=0.5))
    assert found.failure is not None
    assert found.failure.outcome is Outcome.READY_TIMEOUT
    assert "0.5 s" in found.failure.cause
    pids = [int(line) for line in kitchen.starts.read_text().split()] if kitchen.starts.exists() else []
    assert all(gone(pid) for pid in pids)


def test_a_disk_that_is_full_meanwhile_stops_the_study_and_is_made_free_again(kitchen: Kitchen) -> None:
    with pytest.raises(EnvironmentFault, match="No space left on device") as fault:
        kitchen.prepare(kitchen.variant(how="disk-full"))
    assert "--resume" in fault.value.hint
    assert kitchen.cached() == []


def test_a_disk_that_is_too_small_is_told_before_anything_is_started(kitchen: Kitchen) -> None:
    variant = kitchen.variant(needs_disk_gib=1e6)
    with pytest.raises(EnvironmentFault, match=r"variant w8 needs 1e\+06 GiB in .*cache, where") as fault:
        kitchen.prepare(variant)
    assert "variants_dir" in fault.value.hint
    assert kitchen.count() == 0
    spec = kitchen.spec(variant, kitchen.variant(name="other", needs_disk_gib=1.0, versions={"a": "1"}))
    full = missing_room(spec)
    assert full is not None
    assert "w8, other needs" in full.message
    assert missing_room(kitchen.spec(kitchen.variant())) is None


def test_a_whole_variant_needs_no_room(kitchen: Kitchen) -> None:
    kitchen.prepare(kitchen.variant())
    spec = kitchen.spec(kitchen.variant(needs_disk_gib=1e6))
    assert missing_room(spec) is None
    (state,) = variant_states(spec)
    assert state.ready
    assert state.prepare_s is not None


def test_a_tuner_killed_meanwhile_leaves_nothing_that_runs_or_looks_whole(kitchen: Kitchen) -> None:
    with tuner(kitchen, "hangs-once") as killed:
        (pid,) = wait_for_lines(kitchen.starts)
        wait_until(lambda: list((kitchen.folder / "cache").glob("*.partial/half")), "a half-made checkpoint")
        killed.send_signal(signal.SIGKILL)
    wait_until(lambda: gone(int(pid)), "the command's end")
    (state,) = variant_states(kitchen.spec(kitchen.variant(how="hangs-once")))
    assert not state.ready
    assert all(name.endswith(".partial") for name in kitchen.cached())


def test_nobody_else_may_begin_while_anything_of_a_killed_tuners_command_lives(kitchen: Kitchen) -> None:
    with tuner(kitchen, "stubborn") as killed:
        wait_until(lambda: list((kitchen.folder / "cache").glob("*.partial/half")), "a half-made checkpoint")
        killed.send_signal(signal.SIGKILL)
    (lock,) = (kitchen.folder / "cache").glob("*.lock")
    with lock.open() as other:
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.kill(int(kitchen.starts.read_text()), signal.SIGKILL)
        fcntl.flock(other, fcntl.LOCK_EX)


@pytest.mark.parametrize("resumes", [True, False])
def test_a_command_that_can_go_on_is_given_its_folder_back(kitchen: Kitchen, resumes: bool) -> None:
    with tuner(kitchen, "hangs-once", "resumes" if resumes else "") as killed:
        wait_until(lambda: list((kitchen.folder / "cache").glob("*.partial/half")), "a half-made checkpoint")
        killed.send_signal(signal.SIGKILL)
    (state,) = variant_states(kitchen.spec(kitchen.variant(how="hangs-once")))
    partial = Path(f"{state.path}.partial")
    if not resumes:  # given an empty folder it would hang again: end it by its limit
        (partial / "half").write_text("of the killed one")
        found = kitchen.prepare(kitchen.variant(how="hangs-once", timeout_s=0.5))
        assert found.failure is not None
        return
    found = kitchen.prepare(kitchen.variant(how="hangs-once", resumes=True))
    assert "half" in Path(str(found.checkpoint.path), "seen").read_text()


def test_what_was_damaged_is_made_again(kitchen: Kitchen) -> None:
    path = Path(str(kitchen.prepare(kitchen.variant()).checkpoint.path))
    (path / "model.safetensors").unlink()
    assert kitchen.prepare(kitchen.variant()).checkpoint.path == str(path)
    assert (path / "model.safetensors").is_file()
    assert kitchen.count() == 2


def test_a_secret_reaches_the_command_and_no_log(kitchen: Kitchen, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MY_TOKEN", "hunter2-hunter2")
    says = ("sh", "-c", 'echo "token $HF_TOKEN"; mkdir -p {output}; exit 3')
    found = kitchen.prepare(kitchen.variant(command=says, env={"HF_TOKEN": "${MY_TOKEN}"}))
    assert found.failure is not None
    assert "exit code 3" in found.failure.cause
    assert "token <redacted>" in kitchen.log.read_text()
    assert "hunter2" not in str(found)


def test_a_variable_that_is_not_set_is_named(kitchen: Kitchen) -> None:
    os.environ.pop("NOT_SET_HERE", None)
    with pytest.raises(EnvironmentFault, match="NOT_SET_HERE"):
        kitchen.prepare(kitchen.variant(env={"A": "${NOT_SET_HERE}"}))


def test_the_studys_gpus_are_given_to_the_command(kitchen: Kitchen) -> None:
    variant = kitchen.variant(command=("sh", "-c", 'echo "ValueError: $CUDA_VISIBLE_DEVICES" {output}; exit 1'))
    found = prepare_variant(kitchen.spec(variant), variant, gpus=("3", "5"), log=kitchen.log, on_phase=lambda _: None)
    assert found.failure is not None
    assert "ValueError: 3,5" in found.failure.cause
