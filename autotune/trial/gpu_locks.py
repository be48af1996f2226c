"""One study a GPU: a lock for each device, held by the tuner and let go of by the kernel however the tuner ends.

The locks of all users of a machine lie in one folder (`$AUTOTUNE_GPU_LOCKS`, else LOCKS), as a GPU is shared by them.
Anyone may write there, so names are never followed where they link, and what a file says is only ever shown.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path

from autotune.engines.hardware import Gpu
from autotune.errors import EnvironmentFault
from autotune.trial.run import utc_now

LOCKS = Path("/tmp/autotune-gpu-locks")  # noqa: S108  not $TMPDIR, which may be another for each user or job
SHARED_FOLDER, SHARED_FILE = 0o1777, 0o666  # whoever comes first makes them for all
REFUSE, WAIT = "refuse", "wait"  # `HardwareSpec.when_busy`
HOLDER_BYTES = 1000
HOLDER_CHARS = 80


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who holds a GPU, as it said itself: shown, never relied on."""

    study: str
    pid: int
    user: int
    since_utc: str

    def __str__(self) -> str:
        return f"study {self.study} (pid {self.pid}, user {self.user}, since {self.since_utc})"


@contextmanager
def gpus_held(
    gpus: Sequence[Gpu], study: str, when_busy: str = REFUSE, *, tell: Callable[[str], None]
) -> Iterator[None]:
    """Hold `gpus` for `study` within the context; no process started in it inherits a lock.

    A GPU that another study holds is waited for if `when_busy` is `wait`, with a word to `tell`. Raises
    EnvironmentFault when it is `refuse`, or when the locks can't be kept. Locks are taken in one order, so that two
    studies that wait never wait for each other.
    """
    with ExitStack() as held:
        if gpus:
            folder = held.enter_context(_opened(_lock_folder()))
            for name, gpu in sorted({lock_name(gpu): gpu for gpu in gpus}.items()):
                _take(held.enter_context(_opened_file(folder, name)), gpu, study, when_busy, tell)
        yield


def lock_name(gpu: Gpu) -> str:
    """The file of a GPU's lock: its UUID, for a MIG device its id, and the index where NVML shows nothing."""
    return re.sub(r"[^\w.-]", "_", f"{gpu.uuid or f'index-{gpu.id}'}.lock")


def _take(lock: int, gpu: Gpu, study: str, when_busy: str, tell: Callable[[str], None]) -> None:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        words = f"GPU {gpu.id} is held by {_holder(lock) or 'another study'}"
        if when_busy != WAIT:
            hint = "wait for its end, give this one other GPUs (hardware.gpus), or set hardware.when_busy to `wait`"
            raise EnvironmentFault(words, hint) from None
        tell(f"{words}: waiting for its end")
        fcntl.flock(lock, fcntl.LOCK_EX)
    _sign(lock, Holder(study=study, pid=os.getpid(), user=os.getuid(), since_utc=utc_now()))


def _sign(lock: int, holder: Holder) -> None:
    with suppress(OSError):  # a full disk: the lock holds all the same
        os.ftruncate(lock, 0)
        os.pwrite(lock, json.dumps(asdict(holder)).encode(), 0)


def _holder(lock: int) -> Holder | None:
    """Who signed a lock; None for what is no signature. Anybody may have written it, so only plain text passes."""
    try:
        said = json.loads(os.pread(lock, HOLDER_BYTES, 0))
        plain = {field.name: said[field.name] for field in fields(Holder)}
        words = {name: re.sub(r"[^\w .:+-]", "?", str(value))[:HOLDER_CHARS] for name, value in plain.items()}
        return Holder(
            study=words["study"], pid=int(words["pid"]), user=int(words["user"]), since_utc=words["since_utc"]
        )
    except (ValueError, LookupError, TypeError):
        return None


# --- a folder that anybody may write to -------------------------------------------------------------------------------


def _lock_folder() -> Path:
    return Path(os.environ.get("AUTOTUNE_GPU_LOCKS") or LOCKS)


@contextmanager
def _opened(folder: Path) -> Iterator[int]:
    """The folder of the locks, made when it isn't there. Raises EnvironmentFault for a link or anything else."""
    with _kept(folder):
        with suppress(FileExistsError):
            folder.mkdir(parents=True)
            folder.chmod(SHARED_FOLDER)  # mkdir's mode is cut by the umask
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def _opened_file(folder: int, name: str) -> Iterator[int]:
    with _kept(_lock_folder() / name):
        descriptor = _open_shared(folder, name)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise EnvironmentFault(f"{_lock_folder() / name} is no plain file", "remove it")
        yield descriptor
    finally:
        os.close(descriptor)


def _open_shared(folder: int, name: str) -> int:
    """Open a lock's file, which is never removed: a second file of its name would be a second lock.

    Without O_CREAT at first, which kernels refuse for others' files in such a folder (fs.protected_regular).
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK
    try:
        return os.open(name, flags, dir_fd=folder)
    except FileNotFoundError:
        pass
    try:
        descriptor = os.open(name, flags | os.O_CREAT | os.O_EXCL, SHARED_FILE, dir_fd=folder)
    except FileExistsError:  # another study made it meanwhile
        return os.open(name, flags, dir_fd=folder)
    os.fchmod(descriptor, SHARED_FILE)
    return descriptor


@contextmanager
def _kept(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise EnvironmentFault(
            f"the lock of a GPU can't be kept in {path}: {error.strerror}",
            "remove what is in its way, or name another folder, the same for all users, in AUTOTUNE_GPU_LOCKS",
        ) from error
