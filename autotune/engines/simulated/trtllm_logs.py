"""Log lines as TensorRT-LLM writes them: `[12/20/2025-04:21:10] [TRT-LLM] [W] text`, the runtime's without a time."""

from __future__ import annotations

from datetime import datetime
from typing import Literal

from autotune.engines.simulated import logs
from autotune.engines.tensorrt_llm.logs import CRASHED

VERSION = "1.2.1"
SIMULATED_VERSION = f"{VERSION}+simulated"


def write(text: str, *, source: str = "", level: Literal["I", "W", "E"] = "I") -> None:
    """A line of the Python side; `source` is not told."""
    del source
    now = datetime.now().astimezone()
    logs.plain("\n".join(f"[{now:%m/%d/%Y-%H:%M:%S}] [TRT-LLM] [{level}] {line}" for line in text.split("\n")))


def warn(text: str, *, source: str = "") -> None:
    """A warning."""
    write(text, source=source, level="W")


def error(text: str) -> None:
    """An error, of one or several lines."""
    write(text, level="E")


def runtime(text: str, *, level: Literal["INFO", "WARNING", "ERROR"] = "INFO") -> None:
    """A line of the C++ runtime."""
    logs.plain(f"[TensorRT-LLM][{level}] {text}")


def engine_death(cause: str) -> None:
    """The lines of a rank that died while serving; the server lives on and answers 503."""
    if cause != logs.CANCELLED:
        error(f"Error in event loop: {cause}\nTraceback (most recent call last):\n{cause}")
    error(f"{CRASHED}; hard-killing all 1 ranks")


def banner(model: str) -> None:
    """What is said first, with a version that says that this is not TensorRT-LLM."""
    logs.plain(f"[TensorRT-LLM] TensorRT-LLM version: {SIMULATED_VERSION}")
    write(f"SIMULATED ENGINE for {model}: no model is loaded, speeds come from a model")
    write("Using LLM with PyTorch backend")
    logs.plain("rank 0 using MpiPoolSession to spawn MPI processes")
