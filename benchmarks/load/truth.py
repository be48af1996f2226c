"""The server that knows: built here with the machine's C compiler, started on a core of its own, its log read."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

SOURCE = Path(__file__).with_name("truth_server.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """One request as the server knows it, in seconds of the machine's monotonic clock (Python's `perf_counter`)."""

    arrived_s: float
    sent_s: tuple[float, ...]

    @property
    def ttft_s(self) -> float:
        return self.sent_s[0] - self.arrived_s


def build(folder: Path) -> Path:
    """Compile the server into `folder`. Ends the program where there is no compiler."""
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        raise SystemExit("benchmarks/load needs a C compiler (cc, gcc or clang) for its truth server")
    program = folder / "truth_server"
    subprocess.run([compiler, "-O2", "-Wall", "-o", program, SOURCE], check=True)
    return program


class TruthServer:
    """Runs while its context is open; `log` afterwards, by request id."""

    def __init__(self, program: Path, *, ttft_ms: float, itl_ms: float, core: int) -> None:
        self._program = program
        self._log = program.with_name("truth.log")
        self._speed = f"{ttft_ms:g}", f"{itl_ms:g}"
        self._core = core
        self.port = 0

    def __enter__(self) -> Self:
        argv = [str(self._program), *self._speed, str(self._log)]
        self._process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        os.sched_setaffinity(self._process.pid, {self._core})
        assert self._process.stdout is not None
        self.port = int(self._process.stdout.readline())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()  # closes its stdin, which ends it

    def log(self) -> Mapping[str, Truth]:
        return dict(_read(line) for line in self._log.read_text().splitlines())


def _read(line: str) -> tuple[str, Truth]:
    name, arrived_ns, *sent_ns = line.split()
    return name, Truth(arrived_s=int(arrived_ns) / 1e9, sent_s=tuple(int(ns) / 1e9 for ns in sent_ns))
