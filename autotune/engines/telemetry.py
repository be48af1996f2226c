"""Telemetry of a level: the engine's /metrics and NVML, asked about once a second while the load client works.

One thread asks; it may be slow, lied to or hang, and the level goes on: what could not be asked becomes a note.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Protocol, runtime_checkable

from autotune.engines import nvml
from autotune.engines.base import Server
from autotune.records.counters import RUNNING, WAITING, first
from autotune.records.trial import GpuSample, ServerSample, Telemetry

EVERY_S = 1.0
PATIENCE_S = 6.0  # for the first and the last sample; a page may take HTTP_TIMEOUT_S
IDLE_RATIO = 1 / 3
"""Of that, for requests to leave the engine: its counters may lag behind an answer's last byte by a step, and behind a
request that its client left by a few."""
IDLE_POLL_S = 0.05
MAX_SAMPLES = 512
"""Beyond this every second sample is dropped and half as many are taken: an hour of load is no longer than a minute."""

FOREIGN_NAMES = ("python_", "process_", "http_")
"""What every Python server tells of itself: not read by anyone, and half of a page."""


@runtime_checkable
class OnGpus(Protocol):
    """A server of which is known on which GPUs it runs, and which processes are its own."""

    @property
    def gpus(self) -> tuple[str, ...]:
        """The GPUs, as NVML is to be asked for them."""

    @property
    def others_bytes(self) -> Mapping[str, int]:
        """What other processes held of each before the launch."""

    def owns(self, pid: int) -> bool | None:
        """Whether a process belongs to the engine; None where that can't be told."""


class Watch:
    """The samples of one level. Made by `watching`; `telemetry` may be called once its context has closed."""

    def __init__(self, server: Server, every_s: float, patience_s: float) -> None:
        self._server = server
        self._every_s = every_s
        self._patience_s = patience_s
        self._began_s = time.monotonic()
        self._level_s: float | None = None
        self._samples: list[ServerSample] = []
        self._gpus: list[tuple[GpuSample, ...]] = []
        self._notes: dict[str, None] = {}
        self._mine: set[int] | None = None
        self._ready, self._stop = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)

    # --- what the tuner calls -----------------------------------------------------------------------------------------

    def mark(self, elapsed_s: float) -> None:
        """Say that the level has run for `elapsed_s`; the earliest begin that is told is its zero."""
        began_s = time.monotonic() - elapsed_s
        self._level_s = began_s if self._level_s is None else min(self._level_s, began_s)

    def begin(self) -> None:
        """Take the sample from before the level."""
        self._thread.start()
        if not self._ready.wait(self._patience_s):
            self._note("telemetry: nothing was answered before the level began")

    def end(self) -> None:
        """Take the sample from after the level; gives up on a page that hangs."""
        self._stop.set()
        self._thread.join(self._patience_s)
        if self._thread.is_alive():
            self._note("telemetry: nothing was answered after the level's end")

    def telemetry(self) -> Telemetry:
        """What was told, on the level's clock."""
        zero_s = self._began_s if self._level_s is None else self._level_s
        return Telemetry(
            server=tuple(replace(sample, at_s=sample.at_s - zero_s) for sample in list(self._samples)),
            gpus=tuple(replace(s, at_s=s.at_s - zero_s) for group in list(self._gpus) for s in group),
            notes=tuple(self._notes),
        )

    # --- the thread ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with nvml.opened() as there:
                gpus = self._server.gpus if there and isinstance(self._server, OnGpus) else ()
                self._watch(nvml.find(gpus))
        except Exception as error:  # noqa: BLE001 - the thread's boundary: no fault in watching may end a level
            self._note(f"telemetry: {type(error).__name__}: {error}"[:200])
        finally:
            self._ready.set()

    def _watch(self, devices: tuple[nvml.Device, ...]) -> None:
        self._sample(devices, settle=True)
        self._ready.set()
        while not self._stop.wait(self._every_s):
            self._sample(devices)
            self._thin_out()
        self._sample(devices, settle=True)

    def _sample(self, devices: tuple[nvml.Device, ...], *, settle: bool = False) -> None:
        self._sample_gpus(devices)
        values = self._settled() if settle else self._values()
        if values:
            self._samples.append(ServerSample(at_s=time.monotonic(), values=values))

    def _values(self) -> Mapping[str, float]:
        values = {k: v for k, v in self._server.metrics().items() if not k.startswith(FOREIGN_NAMES)}
        if not values:
            self._note("telemetry: the engine's metrics page could not be read")
        return values

    def _settled(self) -> Mapping[str, float]:
        """The counters once no request is running, or as they are when that takes too long."""
        end = time.monotonic() + IDLE_RATIO * self._patience_s
        while (values := self._values()) and _busy(values) and time.monotonic() < end:
            time.sleep(IDLE_POLL_S)
        return values

    def _sample_gpus(self, devices: tuple[nvml.Device, ...]) -> None:
        if devices:
            mine = self._own(nvml.pids(devices))
            self._gpus.append(tuple(nvml.sample(device, time.monotonic(), mine) for device in devices))

    def _own(self, pids: frozenset[int]) -> set[int]:
        """The engine's processes: at first all that might be, for a ready engine has them all; later the certain."""
        assert isinstance(self._server, OnGpus)  # noqa: S101 - else there are no devices
        if self._mine is None:
            self._mine = {pid for pid in pids if self._server.owns(pid) is not False}
        self._mine |= {pid for pid in pids - self._mine if self._server.owns(pid)}
        return self._mine

    def _thin_out(self) -> None:
        if max(len(self._samples), len(self._gpus)) > MAX_SAMPLES:
            self._samples, self._gpus = self._samples[::2], self._gpus[::2]
            self._every_s *= 2

    def _note(self, text: str) -> None:
        self._notes[text] = None


@contextmanager
def watching(server: Server, *, every_s: float = EVERY_S, patience_s: float = PATIENCE_S) -> Iterator[Watch]:
    """Watch `server` and its GPUs within the context: sampled before, every `every_s` seconds, and after.

    Entering and leaving take at most `patience_s` seconds each; what is not answered by then is left out.
    """
    watch = Watch(server, every_s, patience_s)
    watch.begin()
    try:
        yield watch
    finally:
        watch.end()


def _busy(values: Mapping[str, float]) -> bool:
    return bool((first(values, RUNNING) or 0) + (first(values, WAITING) or 0))
