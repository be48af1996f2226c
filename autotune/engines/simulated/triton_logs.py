"""Log lines as Triton writes them: `I0205 12:46:06.062187 70 server.cc:604] "text"`."""

from __future__ import annotations

import os
from datetime import datetime
from typing import Literal

from autotune.engines.simulated import logs


def write(text: str, *, source: str, level: Literal["I", "W", "E"] = "I") -> None:
    """A line of the server."""
    now = datetime.now().astimezone()
    logs.plain(f'{level}{now:%m%d %H:%M:%S.%f} {os.getpid()} {source}] "{text}"')


def models(states: dict[str, str]) -> None:
    """The table that start-up ends with."""
    line = "+--------------+---------+----------+"
    rows = [f"| {name:<12} | 1       | {state:<8} |" for name, state in states.items()]
    logs.plain("\n".join((line, "| Model        | Version | Status   |", line, *rows, line)))
