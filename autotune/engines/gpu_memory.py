"""GPU memory around a launch: what others held before it, whether they moved meanwhile, and that all of it came back.

An engine that runs out of memory because a neighbour took it says nothing about its configuration.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import psutil

from autotune.engines import nvml
from autotune.engines.process import EngineProcess
from autotune.records.trial import Cleanup, Failure, Fault, Outcome, Phase

TOLERANCE_BYTES = 256 * 2**20
"""Less than the context of any CUDA process (300-500 MB): a change below this is no tenant come or gone."""

LOOK_EVERY_S = 1.0
BACK_WITHIN_S = 30.0  # a driver frees the memory of a killed process within a second or two; 80 GB of it in a few more
FLAT_WITHIN_S = 5.0
POLL_S = 0.2

Owns = Callable[[int], bool | None]
"""Whether a process is the engine's; None where that can't be told (a container's processes, another namespace)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """One GPU at one time: bytes in use by whomever, and by processes that are not the engine's."""

    used_bytes: int
    others_bytes: int


class MemoryWatch:
    """Looks at the GPUs of one launch, from before it until after its stop; made by `watched`.

    Without NVML there are no devices, and nothing is ever found. `owns` is to be set once the engine has started.
    """

    def __init__(self, devices: Sequence[nvml.Device]) -> None:
        self._devices = devices
        self.owns: Owns = lambda _pid: None
        self._owned = dict.fromkeys(nvml.pids(devices), False)
        self.before = _flat(lambda: {device.name: _before(device) for device in devices})
        self._peak = {name: held.others_bytes for name, held in self.before.items()}
        self._least = dict(self._peak)
        self._settled: Mapping[str, tuple[int, int]] = {}

    @property
    def gpus(self) -> tuple[str, ...]:
        """The names of the GPUs that NVML knows."""
        return tuple(device.name for device in self._devices)

    @property
    def others_bytes(self) -> Mapping[str, int]:
        """What other processes held on each GPU before the launch."""
        return {name: held.others_bytes for name, held in self.before.items()}

    def look(self) -> None:
        """Note what others hold now."""
        for device in self._devices:
            others = self._others(device)
            if others is not None:
                self._peak[device.name] = max(self._peak[device.name], others)
                self._least[device.name] = min(self._least[device.name], others)

    def _others(self, device: nvml.Device) -> int | None:
        """Bytes of processes that are certainly not the engine's; None where processes can't be listed."""
        listed = nvml.processes(device)
        if listed is None or (not listed and self.before[device.name].others_bytes):
            return None  # those before were counted by what was in use, or have left this very moment
        return sum(size or 0 for pid, size in listed.items() if self._is_mine(pid) is False)

    def _is_mine(self, pid: int) -> bool | None:
        if pid not in self._owned and (mine := self.owns(pid)) is not None:
            self._owned[pid] = mine
        return self._owned.get(pid)

    def blame(self, failure: Failure) -> Failure:
        """Return a failure that is no longer the candidate's where other programs' memory explains it.

        They explain any shortage when they moved during the launch, and an allocation that the device refused when they
        were there before: an engine reckons with the whole device, whoever sits on it.
        """
        if failure.fault is not Fault.CANDIDATE or failure.outcome not in {Outcome.OOM_STARTUP, Outcome.OOM_LOAD}:
            return failure
        self.look()
        for name, before in self.others_bytes.items():
            least, peak = self._least[name], self._peak[name]
            if peak - least > TOLERANCE_BYTES:
                return _foreign(failure, f"other programs' memory on GPU {name} moved, {_gib(least)} to {_gib(peak)}")
            if before > TOLERANCE_BYTES and "out of memory" in failure.cause.lower():
                return _foreign(failure, f"other programs held {_gib(before)} of GPU {name} before the launch")
        return failure

    def proven(self, cleanup: Cleanup | None) -> Cleanup | None:
        """Return the proof of a stop with what `settle` found."""
        return None if cleanup is None else replace(cleanup, gpu_memory=self._settled)

    def settle(self, deadline_s: float = BACK_WITHIN_S) -> None:
        """Wait until the GPUs' memory is back, once the engine has been stopped."""
        self._settled = self.back(deadline_s)

    def back(self, deadline_s: float = BACK_WITHIN_S) -> dict[str, tuple[int, int]]:
        """Wait until the memory of every GPU is what it was, or others have it; then bytes (before, now) by GPU."""
        end = time.monotonic() + deadline_s
        while True:
            now = {device.name: nvml.memory_used_bytes(device) for device in self._devices}
            pairs = {n: (self.before[n].used_bytes, used) for n, used in now.items() if used is not None}
            if all(self._is_back(device, pairs) for device in self._devices) or time.monotonic() > end:
                return pairs
            time.sleep(POLL_S)

    def _is_back(self, device: nvml.Device, pairs: Mapping[str, tuple[int, int]]) -> bool:
        if device.name not in pairs:
            return True
        before, now = pairs[device.name]
        newcomers = max(0, (self._others(device) or 0) - self.before[device.name].others_bytes)
        return now - newcomers <= before + TOLERANCE_BYTES


@contextmanager
def watched(gpus: Sequence[str]) -> Iterator[MemoryWatch]:
    """Watch the memory of `gpus` (as the study names them) while an engine starts, runs and is stopped."""
    with nvml.opened() as there:
        watch = MemoryWatch(nvml.find(gpus) if there else ())
        done = threading.Event()
        thread = threading.Thread(target=_keep_looking, args=(watch, done), name="gpu-memory", daemon=True)
        if watch.before:
            thread.start()
        try:
            yield watch
        finally:
            done.set()


def _keep_looking(watch: MemoryWatch, done: threading.Event) -> None:
    with nvml.opened():
        while not done.wait(LOOK_EVERY_S):
            watch.look()


def owner(process: EngineProcess) -> Owns:
    """Whether a process is of the tree that `process` keeps, as this machine's kernel numbers it."""

    def owns(pid: int) -> bool | None:
        if process.contained is not None:  # its processes are not under its keeper
            tree = {member.pid for member in process.tree()}
            return pid in tree if tree else None
        try:
            return any(parent.pid == process.keeper.pid for parent in psutil.Process(pid).parents())
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            return None

    return owns


def kept(cleanup: Cleanup | None) -> Failure | None:
    """Why a next trial would be spoilt: GPU memory that did not come back after the stop; None when it did."""
    for name, (before, after) in (cleanup.gpu_memory if cleanup else {}).items():
        if after > before + TOLERANCE_BYTES:
            return Failure(
                outcome=Outcome.ENVIRONMENT,
                fault=Fault.ENVIRONMENT,
                phase=Phase.STOP,
                cause=f"GPU {name} held {_gib(before)} before the launch and {_gib(after)} "
                f"{BACK_WITHIN_S:g} s after the stop",
                remedy="find who holds it (nvidia-smi); memory without a process takes a reset of the GPU",
            )
    return None


def _before(device: nvml.Device) -> Held:
    """Before the launch all is others'. Processes of another namespace are not listed, but their memory is in use."""
    used = nvml.memory_used_bytes(device) or 0
    listed = sum(size or 0 for size in (nvml.processes(device) or {}).values())
    reserve = 2**30  # more than any driver keeps for itself
    return Held(used_bytes=used, others_bytes=listed or (used if used > reserve else 0))


def _flat(read: Callable[[], Mapping[str, Held]]) -> Mapping[str, Held]:
    """What was read once two readings agree: a neighbour that is just ending would be taken for the level before."""
    end = time.monotonic() + FLAT_WITHIN_S
    last = read()
    while last and time.monotonic() < end:
        time.sleep(POLL_S)
        now = read()
        if all(abs(now[name].used_bytes - last[name].used_bytes) <= TOLERANCE_BYTES // 16 for name in now):
            return now
        last = now
    return last


def _foreign(failure: Failure, why: str) -> Failure:
    return replace(
        failure,
        outcome=Outcome.ENVIRONMENT,
        fault=Fault.ENVIRONMENT,
        cause=f"{failure.cause} ({why})",
        remedy="another program uses the GPU: end it, or give the study GPUs of its own",
    )


def _gib(size: int) -> str:
    return f"{size / 2**30:.1f} GiB"
