"""Where prepared checkpoints lie: `<digest>/` is whole, `<digest>.partial/` is being made, `<digest>.lock` by whom.

A folder gets its final name when it was checked and is on the disk, so what has that name is whole; its manifest lists
every file's size, which tells one that was damaged later.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.errors import EnvironmentFault
from autotune.records.spec import StudySpec

MANIFEST = "autotune-variant.json"
LOCK_POLL_S = 0.5
GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a prepared folder says of itself: how it was made, in how many seconds, and the size of each file."""

    name: str
    digest: str
    command: tuple[str, ...]
    prepare_s: float
    files: dict[str, int]


def variants_folder(spec: StudySpec) -> Path:
    """Return the folder of all prepared checkpoints: the study's own, else one in the user's cache."""
    if spec.variants_dir is not None:
        return Path(spec.variants_dir).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser().absolute() / "autotune" / "variants"


@dataclass(frozen=True, slots=True)
class Place:
    """Where one variant lies."""

    folder: Path
    digest: str

    @property
    def whole(self) -> Path:
        """The checkpoint."""
        return self.folder / self.digest

    @property
    def partial(self) -> Path:
        """What is being made, or what a preparation that was stopped left."""
        return self.folder / f"{self.digest}.partial"

    @property
    def log(self) -> Path:
        """The log of a preparation outside any run."""
        return self.folder / f"{self.digest}.log"

    def manifest(self) -> Manifest | None:
        """What is there, None when nothing is, or not what was put there."""
        try:
            manifest = _read_manifest((self.whole / MANIFEST).read_bytes())
            sizes = {name: (self.whole / name).stat().st_size for name in manifest.files}
        except (OSError, ValueError):
            return None
        return manifest if sizes == manifest.files and manifest.digest == self.digest else None

    @contextmanager
    def held(self, tell: Callable[[str], None]) -> Iterator[int]:
        """Be its only maker; another one is waited for. Yields the lock, of which the kernel lets go when all that have
        it open have ended, however they do."""
        with kept(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            lock = os.open(self.folder / f"{self.digest}.lock", os.O_RDWR | os.O_CREAT, 0o644)
        try:
            _wait_for(lock, tell)
            yield lock
        finally:
            os.close(lock)

    def start(self, *, keep: bool) -> None:
        """Make the partial folder, empty unless `keep` gives back what is there. Only the maker may call it."""
        with kept(self.partial):
            if not keep:
                self.drop()
            self.partial.mkdir(exist_ok=True)

    def drop(self) -> None:
        """Remove what is not whole."""
        shutil.rmtree(self.partial, ignore_errors=True)

    def seal(self, *, name: str, command: tuple[str, ...], prepare_s: float) -> Manifest:
        """Put the partial folder in place for good. Only the maker may call it, once the content was checked."""
        with kept(self.partial):
            (self.partial / MANIFEST).unlink(missing_ok=True)
            files = {str(path.relative_to(self.partial)): path.stat().st_size for path in _files(self.partial)}
            manifest = Manifest(name=name, digest=self.digest, command=command, prepare_s=prepare_s, files=files)
            (self.partial / MANIFEST).write_text(json.dumps(asdict(manifest), indent=1) + "\n", encoding="utf-8")
            for path in [*_files(self.partial), *_folders(self.partial)]:
                _to_disk(path)
            shutil.rmtree(self.whole, ignore_errors=True)  # one whose manifest no longer holds
            self.partial.rename(self.whole)
            _to_disk(self.folder)
        return manifest


def place_of(spec: StudySpec, digest: str) -> Place:
    """Return where the variant of a digest lies, or will."""
    return Place(variants_folder(spec), digest)


def _read_manifest(text: bytes) -> Manifest:
    from pydantic import TypeAdapter  # noqa: PLC0415 - heavy

    manifest: Manifest = TypeAdapter(Manifest).validate_json(text)  # what it refuses is a ValueError
    return manifest


def _wait_for(lock: int, tell: Callable[[str], None]) -> None:
    while True:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell("waiting: another autotune is preparing it")
            time.sleep(LOCK_POLL_S)
        else:
            return


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _folders(folder: Path) -> list[Path]:
    return [folder, *(path for path in folder.rglob("*") if path.is_dir())]


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# --- disk -------------------------------------------------------------------------------------------------------------


def size_bytes(folder: Path) -> int:
    """Return what the files below a folder take; those that vanish meanwhile take nothing."""
    total = 0
    for parent, _, names in os.walk(folder):
        for name in names:
            try:
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118  a walk of thousands of files
            except FileNotFoundError:
                continue
    return total


def free_bytes(folder: Path) -> int:
    """Return what may be written at `folder`, which need not exist yet."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    return shutil.disk_usage(there).free


def no_room(folder: Path, name: str, needed_gib: float, free_gib: float) -> EnvironmentFault:
    """The error of a disk that can't hold a variant."""
    return EnvironmentFault(
        f"variant {name} needs {needed_gib:.4g} GiB in {folder}, where {free_gib:.4g} GiB are free",
        "free some, or set variants_dir to a folder on a larger disk; finished trials are kept: go on with --resume",
    )


@contextmanager
def kept(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an EnvironmentFault that names `path`."""
    try:
        yield
    except OSError as error:
        full = error.errno in (errno.ENOSPC, errno.EDQUOT)
        raise EnvironmentFault(
            f"{path} can't be written: {error.strerror or error}",
            ("free some disk, or " if full else "check its permissions, or ")
            + "set variants_dir to another folder; finished trials are kept: go on with --resume",
        ) from error
