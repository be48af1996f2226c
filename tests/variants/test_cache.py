"""The cache: what has its final name is whole, and there is one maker at a time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.engines.variants.cache import MANIFEST, Place, free_bytes, variants_folder
from autotune.errors import EnvironmentFault
from tests.builders import study_spec
from tests.variants.maker import checkpoint

HOLDER = """
import fcntl, os, sys
lock = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A sealed checkpoint."""
    place = Place(tmp_path, "abc")
    place.start(keep=False)
    checkpoint(place.partial)
    (place.partial / "deeper").mkdir()
    (place.partial / "deeper" / "file").write_text("x")
    place.seal(name="w8", command=("make",), prepare_s=1.5)
    return place


def test_what_is_sealed_is_found_with_how_it_was_made(place: Place) -> None:
    manifest = place.manifest()
    assert manifest is not None
    assert (manifest.name, manifest.command, manifest.prepare_s) == ("w8", ("make",), 1.5)
    assert "deeper/file" in manifest.files
    assert not place.partial.exists()


def test_what_is_not_sealed_is_not_found(tmp_path: Path) -> None:
    place = Place(tmp_path, "abc")
    assert place.manifest() is None
    place.start(keep=False)
    checkpoint(place.partial)
    assert place.manifest() is None


@pytest.mark.parametrize("harm", ["cut off", "gone", "longer"])
def test_a_file_that_is_no_longer_what_was_sealed_makes_it_unfit(place: Place, harm: str) -> None:
    file = place.whole / "model.safetensors"
    match harm:
        case "cut off":
            file.write_bytes(file.read_bytes()[:-1])
        case "longer":
            file.write_bytes(file.read_bytes() + b"x")
        case "gone":
            file.unlink()
    assert place.manifest() is None
    place.start(keep=False)
    checkpoint(place.partial)
    place.seal(name="w8", command=(), prepare_s=1.0)
    assert place.manifest() is not None


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"name": 1}', '{"name":"w8","digest":"abc","command":[],"prepare_s":"x","files":{}}']
)
def test_a_manifest_that_says_something_else_is_none(place: Place, text: str) -> None:
    (place.whole / MANIFEST).write_text(text)
    assert place.manifest() is None


def test_a_folder_put_there_under_another_name_is_not_taken(place: Place) -> None:
    other = Place(place.folder, "def")
    place.whole.rename(other.whole)
    assert other.manifest() is None


def test_a_partial_folder_is_emptied_or_kept(tmp_path: Path) -> None:
    place = Place(tmp_path, "abc")
    place.start(keep=False)
    (place.partial / "half").touch()
    place.start(keep=True)
    assert (place.partial / "half").exists()
    place.start(keep=False)
    assert not (place.partial / "half").exists()


def test_another_maker_is_waited_for_with_a_word(tmp_path: Path) -> None:
    place, told = Place(tmp_path, "abc"), []
    argv = [sys.executable, "-S", "-c", HOLDER, str(tmp_path / "abc.lock")]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        stdin, stdout = other.stdin, other.stdout
        assert stdin is not None
        assert stdout is not None
        assert stdout.readline() == b"held\n"

        def tell(text: str) -> None:
            told.append(text)
            stdin.close()  # which ends it, and lets go of the lock

        with place.held(tell):
            assert told


def test_a_cache_that_can_not_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(EnvironmentFault, match="file/cache can't be written"),
        Place(tmp_path / "file/cache", "a").held(print),
    ):
        pass


def test_the_cache_lies_where_the_study_says_else_in_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert variants_folder(study_spec()) == tmp_path / "autotune" / "variants"
    assert variants_folder(study_spec(variants_dir="here")) == Path.cwd() / "here"
    assert free_bytes(tmp_path / "not" / "there" / "yet") > 0
