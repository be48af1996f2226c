"""What NVML tells of GPUs. A field that a driver lacks, or a user may not see, is None: never an exception."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import pynvml

from autotune.records.trial import GpuSample

T = TypeVar("T")

MIG_PREFIX = "MIG-"

THROTTLE_REASONS: dict[int, str] = {
    pynvml.nvmlClocksEventReasonSwPowerCap: "power_cap",
    pynvml.nvmlClocksEventReasonHwSlowdown: "hw_slowdown",
    pynvml.nvmlClocksEventReasonSyncBoost: "sync_boost",
    pynvml.nvmlClocksEventReasonSwThermalSlowdown: "sw_thermal",
    pynvml.nvmlClocksEventReasonHwThermalSlowdown: "hw_thermal",
    pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown: "power_brake",
    pynvml.nvmlClocksEventReasonApplicationsClocksSetting: "clock_setting",
}
"""Why a clock is held down, by NVML's bit; being idle is none of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """A GPU or a MIG instance by the name it was asked for. `uuid` is NVML's; `board` is the GPU that has clocks and
    power (a MIG instance has none of its own)."""

    name: str
    uuid: str
    product: str | None
    memory_bytes: int | None
    handle: Any
    board: Any


@contextmanager
def opened() -> Iterator[bool]:
    """Hold NVML open; yields False where there is no driver. May be nested, and used by several threads."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()


def ask(function: Callable[..., T], *arguments: Any) -> T | None:  # noqa: ANN401  whatever NVML's functions take
    """Call a function of NVML; None for whatever it refuses: unsupported, not permitted, the GPU lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None


def devices() -> tuple[Device, ...]:
    """Every whole GPU, named by its index. NVML must be open."""
    found = (_by_index(index) for index in range(ask(pynvml.nvmlDeviceGetCount) or 0))
    return tuple(device for device in found if device is not None)


def find(names: Iterable[str]) -> tuple[Device, ...]:
    """The devices of `names` (index, GPU UUID or its beginning, MIG id); one that NVML doesn't know is left out."""
    found = (_find(name) for name in names)
    return tuple(device for device in found if device is not None)


def _find(name: str) -> Device | None:
    if name.isdecimal():
        return _by_index(int(name))
    if name.startswith(MIG_PREFIX):
        handle = ask(pynvml.nvmlDeviceGetHandleByUUID, name)
        board = None if handle is None else ask(pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        return None if handle is None else _device(name, handle, board)
    return next((_named(name, device) for device in devices() if device.uuid.startswith(name)), None)


def _by_index(index: int) -> Device | None:
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    return None if handle is None else _device(str(index), handle, handle)


def _named(name: str, device: Device) -> Device:
    return _device(name, device.handle, device.board)


def _device(name: str, handle: Any, board: Any) -> Device:  # noqa: ANN401  NVML's handles
    memory = _memory(handle)
    return Device(
        name=name,
        uuid=ask(pynvml.nvmlDeviceGetUUID, handle) or "",
        product=ask(pynvml.nvmlDeviceGetName, handle),
        memory_bytes=None if memory is None else int(memory.total),
        handle=handle,
        board=board,
    )


# --- one moment -------------------------------------------------------------------------------------------------------


def sample(device: Device, at_s: float, mine: Collection[int] | None) -> GpuSample:
    """A GPU now. `mine` are the engine's processes; None: unknown, so that nobody can be told from others."""
    clock = ask(pynvml.nvmlDeviceGetClockInfo, device.board, pynvml.NVML_CLOCK_SM)
    throttle = ask(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, device.board)  # the name that all drivers have
    utilisation = ask(pynvml.nvmlDeviceGetUtilizationRates, device.handle)
    return GpuSample(
        at_s=at_s,
        gpu=device.name,
        memory_used_bytes=memory_used_bytes(device),
        others_bytes=None if mine is None else others_bytes(device, mine),
        utilisation_ratio=None if utilisation is None else utilisation.gpu / 100,
        sm_clock_mhz=_number(clock),
        temperature_c=_number(ask(pynvml.nvmlDeviceGetTemperature, device.board, pynvml.NVML_TEMPERATURE_GPU)),
        power_w=_number(ask(pynvml.nvmlDeviceGetPowerUsage, device.board), 1e-3),
        energy_j=_number(ask(pynvml.nvmlDeviceGetTotalEnergyConsumption, device.board), 1e-3),
        throttled=reasons(throttle or 0),
    )


def reasons(bits: int) -> tuple[str, ...]:
    """The names of NVML's clock event reasons; the idle bit and those unknown to us are left out."""
    return tuple(name for bit, name in THROTTLE_REASONS.items() if bits & bit)


def _number(value: int | None, scale: float = 1.0) -> float | None:
    return None if value is None else value * scale


def _memory(handle: Any) -> Any:  # noqa: ANN401  a struct of NVML's
    """Version 2 leaves the driver's own reserve out of what is used; drivers before 510 have version 1 alone."""
    return ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2) or ask(
        pynvml.nvmlDeviceGetMemoryInfo, handle
    )


def memory_used_bytes(device: Device) -> int | None:
    """Memory of the GPU that is in use, by whomever."""
    memory = _memory(device.handle)
    return None if memory is None else int(memory.used)


def processes(device: Device) -> dict[int, int | None] | None:
    """Bytes by process id of those that compute on the GPU; None where they can't be listed, or of one whose memory is
    not told. Ids are the host's: inside a container they may be nobody's."""
    found = ask(pynvml.nvmlDeviceGetComputeRunningProcesses, device.handle)
    return None if found is None else {int(process.pid): process.usedGpuMemory for process in found}


def others_bytes(device: Device, mine: Collection[int]) -> int | None:
    """Memory of processes that are not `mine`; None where NVML doesn't list them or hides what one of them holds."""
    listed = processes(device)
    if listed is None:
        return None
    sizes = [size for pid, size in listed.items() if pid not in mine]
    return None if any(size is None for size in sizes) else sum(size for size in sizes if size is not None)


def pids(found: Sequence[Device]) -> frozenset[int]:
    """Ids of all processes that compute on one of the GPUs."""
    return frozenset(pid for device in found for pid in processes(device) or ())
