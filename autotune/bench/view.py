"""The live view of a measurement, on stderr: a line that redraws on a terminal, plain lines elsewhere."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from autotune.load import Progress
from autotune.records.spec import LoadSpec
from autotune.report.words import duration, figure, plain

RATE_OVER_S = 5.0
_REDRAWS_PER_S = 4
_PLAIN_EVERY_S = 10.0


class LiveView:
    """Context manager; `phase` and `progress` are what the measurement tells it. `opening` stands above them."""

    def __init__(
        self,
        load: LoadSpec,
        opening: str = "",
        *,
        console: Console | None = None,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._load = load
        self._opening = opening
        self._console = console or Console(stderr=True)
        self._clock = clock
        self._redraws = self._console.is_terminal and environ.get("TERM") != "dumb" and not environ.get("CI")
        self._live: Live | None = None
        self._phase = "asking"
        self._phase_began_s = clock()
        self._level = 0
        self._progress: Progress | None = None
        self._seen: deque[tuple[float, int]] = deque()  # (elapsed s, tokens) of the last few seconds
        self._said_s = clock()

    def __enter__(self) -> Self:
        if self._redraws:
            self._live = Live(
                console=self._console, get_renderable=self.render, refresh_per_second=_REDRAWS_PER_S, transient=True
            )
            self._live.start()
        else:
            self._say(self._opening)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._phase = ""
            self._live.stop()
            self._live = None

    def phase(self, text: str) -> None:
        """Show that the measurement has come to `text`."""
        self._phase, self._phase_began_s = plain(text), self._clock()
        self._progress = None
        self._say(self._phase)

    def progress(self, progress: Progress) -> None:
        """Show how the level stands; time that runs backwards is another level."""
        if not self._seen or progress.elapsed_s < self._seen[-1][0]:
            self._seen.clear()
            self._level += 1
        self._progress = progress
        self._seen.append((progress.elapsed_s, progress.tokens))
        while self._seen[0][0] < progress.elapsed_s - RATE_OVER_S:
            self._seen.popleft()
        if self._clock() - self._said_s > _PLAIN_EVERY_S:
            self._say(self._text())

    def render(self) -> RenderableType:
        """Return the view as it is now; nothing once it has ended."""
        return Group(Text(self._opening), Text(self._text(), style="bold")) if self._phase else Group()

    def _text(self) -> str:
        progress = self._progress
        if progress is None:
            return f"{self._phase} {duration(self._clock() - self._phase_began_s)}"
        parts = [
            f"{self._phase}{self._which()} {self._passed(progress)}",
            f"{progress.done} done",
            f"{progress.in_flight} in flight",
            f"{self._tok_per_s()} tok/s",
        ]
        return " · ".join([*parts, *([f"{progress.errors} failed"] if progress.errors else [])])

    def _which(self) -> str:
        if self._load.capacity is not None:
            return f" level {self._level}"
        return f" level {self._level} of {self._load.repeats}" if self._load.repeats > 1 else ""

    def _passed(self, progress: Progress) -> str:
        if self._load.capacity is not None:
            return duration(progress.elapsed_s)
        return f"{progress.elapsed_s:.0f} of {self._load.warmup_s + self._load.duration_s:.0f} s"

    def _tok_per_s(self) -> str:
        (first_s, before), (last_s, now) = self._seen[0], self._seen[-1]
        return figure((now - before) / (last_s - first_s)) if last_s > first_s else "-"

    def _say(self, line: str) -> None:
        """Print a line where nothing redraws."""
        self._said_s = self._clock()
        if not self._redraws:
            with suppress(OSError):  # nobody reads on: no reason to end the measurement
                self._console.file.write(line + "\n")
                self._console.file.flush()
