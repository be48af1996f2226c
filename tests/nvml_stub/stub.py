"""Builds the stub library and puts it under the real `pynvml`, with a driver's answers as the test says."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import tempfile
from pathlib import Path

import pynvml
import pytest

SOURCE = Path(__file__).with_name("nvml.c")
LIBRARY = "libnvidia-ml.so.1"
GIB = 2**30

H100 = {
    "uuid": "GPU-11111111-aaaa",
    "name": "NVIDIA H100 80GB HBM3",
    "memory_total": 80 * GIB,
    "memory_used": GIB // 8,
    "sm_clock_mhz": 1980,
    "throttle": 0,
    "temperature_c": 41,
    "power_mw": 350_500,
    "energy_mj": 1_000_000,
    "utilisation_pct": 97,
    "processes": "",
}
"""A whole, idle GPU of which the driver tells everything."""

_folder = tempfile.TemporaryDirectory(prefix="nvml-stub-")


@functools.cache
def library() -> Path:
    """The shared library, built once a session."""
    path = Path(_folder.name) / LIBRARY
    command = [
        "cc",
        "-shared",
        "-fPIC",
        "-O1",
        "-Wall",
        "-Werror",
        f"-Wl,-soname,{LIBRARY}",
        "-o",
        str(path),
        str(SOURCE),
    ]
    subprocess.run(command, check=True)
    return path


class Driver:
    """What the driver says from now on; devices by number, MIG instances from 8 on."""

    def __init__(self, script: Path) -> None:
        self._script = script
        self._devices: dict[int, dict[str, object]] = {}
        self._hang_s = 0

    def set(self, device: int = 0, /, **values: object) -> None:
        """Change what is said of a device; None: not supported."""
        self._devices.setdefault(device, {}).update(values)
        self._write()

    def hang(self, seconds: int) -> None:
        """Let every question take this long."""
        self._hang_s = seconds
        self._write()

    def _write(self) -> None:
        lines = [f"count {sum(number < 8 for number in self._devices)}"]
        lines += [f"hang_s {self._hang_s}"] if self._hang_s else []
        for number, values in self._devices.items():
            lines += [f"{number}.{key} {value}" for key, value in values.items() if value is not None]
        draft = self._script.with_suffix(".new")
        draft.write_text("\n".join(lines) + "\n")
        draft.replace(self._script)


def install(monkeypatch: pytest.MonkeyPatch, folder: Path) -> Driver:
    """Let pynvml speak to the stub, on a machine with one H100, until the test ends."""
    script = folder / "nvml.txt"
    monkeypatch.setattr(pynvml, "nvmlLib", ctypes.CDLL(str(library())))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setenv("AUTOTUNE_NVML_STUB", str(script))
    driver = Driver(script)
    driver.set(0, **H100)
    return driver


def environment(folder: Path) -> dict[str, str]:
    """The environment in which another process finds the stub by itself, as it would find a driver."""
    return {**os.environ, "LD_LIBRARY_PATH": str(library().parent), "AUTOTUNE_NVML_STUB": str(folder / "nvml.txt")}
