"""What a trial runs on: GPUs, and the versions of everything below the engine. Absent is None, never an error."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.engines.nvml import Device


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
    if spec_gpus is not None:
        return _named([str(gpu) for gpu in spec_gpus])
    allocated = os.environ.get("CUDA_VISIBLE_DEVICES")
    return nvml_gpus() if allocated is None else _named(_cuda_visible(allocated))


def _cuda_visible(text: str) -> list[str]:
    """Entries up to the first invalid one: CUDA ignores `-1` and whatever follows it."""
    names: list[str] = []
    for entry in text.split(","):
        name = entry.strip()
        if not name or name == "-1":
            break
        names.append(name)
    return names


def _named(names: Sequence[str]) -> tuple[Gpu, ...]:
    """The GPUs of these names, with what NVML knows of them."""
    from autotune.engines import nvml  # noqa: PLC0415

    with nvml.opened():
        known = {device.name: _gpu(device) for device in nvml.find(names)}
    return tuple(known.get(name, Gpu(id=name)) for name in names)


def nvml_gpus() -> tuple[Gpu, ...]:
    """Every GPU that NVML shows, by index; () without a driver."""
    from autotune.engines import nvml  # noqa: PLC0415  only commands that launch need it

    with nvml.opened():
        return tuple(_gpu(device) for device in nvml.devices())


def _gpu(device: Device) -> Gpu:
    return Gpu(id=device.name, name=device.product, uuid=device.uuid or None, memory_bytes=device.memory_bytes)


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

    from autotune.engines import nvml  # noqa: PLC0415

    with nvml.opened():
        return nvml.ask(pynvml.nvmlSystemGetDriverVersion)
