"""Log lines in vLLM 0.32's format, so that whoever reads the real engine's log reads this one.

`(APIServer pid=7) INFO 11-30 10:38:15 [entry.py:140] Starting vLLM server …`: process, level, time, source line, text.
Lines go to stdout unbuffered; a traceback or a multi-line text repeats the head on every line, as vLLM's logger does.
"""

from __future__ import annotations

import os
import sys
from datetime import datetime
from typing import Literal

VERSION = "0.32.0"
SIMULATED_VERSION = f"{VERSION}+simulated"
DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."

CANCELLED = "RuntimeError: cancelled"  # what the core says after its worker died
_WORKER_DIED = "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."

Process = Literal["APIServer", "EngineCore", "Worker"]
Level = Literal["INFO", "WARNING", "ERROR"]


def write(text: str, *, source: str, process: Process = "APIServer", level: Level = "INFO") -> None:
    """Log `text` as coming from `source` (`file.py:line`) of one of the engine's processes."""
    now = datetime.now().astimezone()  # vLLM logs local time
    head = f"({process} pid={os.getpid()}) {level} {now:%m-%d %H:%M:%S} [{source}]"
    plain("\n".join(f"{head} {line}" for line in text.split("\n")))


def warn(text: str, *, source: str, process: Process = "APIServer") -> None:
    """A WARNING line."""
    write(text, source=source, process=process, level="WARNING")


def error(text: str, *, source: str, process: Process = "APIServer") -> None:
    """An ERROR line, or several."""
    write(text, source=source, process=process, level="ERROR")


def plain(text: str) -> None:
    """A line without vLLM's head (tracebacks, progress bars)."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def banner(model: str) -> None:
    """vLLM's banner, with a version that says that this is not vLLM."""
    art = (
        "",
        "       █     █     █▄   ▄█",
        f" ▄▄ ▄█ █     █     █ ▀▄▀ █  version {SIMULATED_VERSION}",
        f"  █▄█▀ █     █     █     █  model   {model}",
        "   ▀▀  ▀▀▀▀▀ ▀▀▀▀▀ ▀     ▀",
        "",
        "SIMULATED ENGINE: no model is loaded and no token is computed; speeds come from a model of the scheduler.",
    )
    write("\n".join(art), source="api_utils.py:347")


def engine_death(cause: str) -> None:
    """The lines of an engine core that died while serving, `cause` being the exception's last line."""
    if cause == CANCELLED:
        error(_WORKER_DIED, source="multiproc_executor.py:315", process="EngineCore")
    core = (
        "EngineCore encountered a fatal error.",
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/core.py", line 1496, in run_engine_core',
        "    engine_core.run_busy_loop()",
        cause,
    )
    error("\n".join(core), source="core.py:1512", process="EngineCore")
    handler = (
        "AsyncLLM output_handler failed.",
        "Traceback (most recent call last):",
        '  File "vllm/v1/engine/async_llm.py", line 849, in output_handler',
        "    outputs = await engine_core.get_output_async()",
        f"vllm.v1.engine.exceptions.EngineDeadError: {DEAD}",
    )
    error("\n".join(handler), source="async_llm.py:906")
