"""What a trial runs on: GPUs, and the versions of everything below the engine. Absent is None, never an error."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One device as CUDA_VISIBLE_DEVICES names it: index, GPU UUID or MIG id. The rest is None without NVML."""

    id: str
    name: str | None = None
    uuid: str | None = None
    memory_bytes: int | None = None


def visible_gpus(spec_gpus: Sequence[int | str] | None) -> tuple[Gpu, ...]:
    """GPUs that the engine is given: those the study names, else CUDA_VISIBLE_DEVICES, else all that NVML shows.

    () where there is no GPU. An allocation made by a scheduler such as Slurm arrives as CUDA_VISIBLE_DEVICES.
    """
    present = nvml_gpus()
    if spec_gpus is not None:
        return tuple(_named(str(gpu), present) for gpu in spec_gpus)
    allocated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allocated is None:
        return present
    return tuple(_named(name, present) for name in _cuda_visible(allocated))


def _cuda_visible(text: str) -> list[str]:
    """Entries up to the first invalid one: CUDA ignores `-1` and whatever follows it."""
    names: list[str] = []
    for entry in text.split(","):
        name = entry.strip()
        if not name or name == "-1":
            break
        names.append(name)
    return names


def _named(name: str, present: Sequence[Gpu]) -> Gpu:
    for gpu in present:
        if name == gpu.id or (gpu.uuid is not None and name.startswith("GPU-") and gpu.uuid.startswith(name)):
            return Gpu(id=name, name=gpu.name, uuid=gpu.uuid, memory_bytes=gpu.memory_bytes)
    return Gpu(id=name)


def nvml_gpus() -> tuple[Gpu, ...]:
    """Every GPU that NVML shows, by index; () without a driver."""
    import pynvml  # noqa: PLC0415  only commands that launch need it

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ()
    try:
        return tuple(_nvml_gpu(pynvml, index) for index in range(pynvml.nvmlDeviceGetCount()))
    finally:
        pynvml.nvmlShutdown()


def _nvml_gpu(pynvml, index: int) -> Gpu:  # type: ignore[no-untyped-def]  # noqa: ANN001  the module has no types
    handle = pynvml.nvmlDeviceGetHandleByIndex(index)
    return Gpu(
        id=str(index),
        name=pynvml.nvmlDeviceGetName(handle),
        uuid=pynvml.nvmlDeviceGetUUID(handle),
        memory_bytes=int(pynvml.nvmlDeviceGetMemoryInfo(handle).total),
    )


def host_versions() -> Mapping[str, str | None]:
    """Versions and names of the tuner, its python, the processor, kernel, driver and GPUs."""
    names = [gpu.name or gpu.id for gpu in nvml_gpus()]
    return {
        "autotune": _installed("autotune-llm"),
        "python": platform.python_version(),
        "optuna": _installed("optuna"),
        "cpu": _cpu_model(),
        "cpu_cores": str(os.cpu_count()),
        "cpu_cores_usable": str(len(os.sched_getaffinity(0))),
        "kernel": platform.release(),
        "driver": _driver(),
        "gpus": ", ".join(names) or None,
    }


def _installed(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _cpu_model() -> str | None:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)


def _driver() -> str | None:
    import pynvml  # noqa: PLC0415

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return None
    try:
        return str(pynvml.nvmlSystemGetDriverVersion())
    finally:
        pynvml.nvmlShutdown()
