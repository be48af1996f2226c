"""A running TensorRT-LLM, as the stages behind the launch see it."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.engines.launching import Started, Way
from autotune.engines.net import get
from autotune.engines.served import LaunchedServer
from autotune.engines.tensorrt_llm.logs import log_warnings, longest_sequence, resolved_settings
from autotune.engines.tensorrt_llm.stats import IterationStats
from autotune.records.trial import Failure, Phase


class TrtLlmServer(LaunchedServer):
    """Follows `engines.base.Server`."""

    def __init__(self, way: Way, started: Started, model: str) -> None:
        super().__init__(way, started, model)
        self._stats = IterationStats()

    @property
    def max_model_len(self) -> int | None:
        """The engine's own figure has room for its scheduler on top of what was asked."""
        told = (self._started.asked.get("max_seq_len"), longest_sequence(self._started.text()))
        return min((length for length in told if isinstance(length, int)), default=None)

    def resolved(self) -> Mapping[str, Any]:
        return resolved_settings(self._started.text())

    def warnings(self) -> tuple[str, ...]:
        return log_warnings(self._started.text())

    def metrics(self) -> Mapping[str, float]:
        return self._stats.take(self._page("/metrics"))

    def failure(self, phase: Phase) -> Failure | None:
        """Also of a server that lives on after a rank has died: it answers 503 for ever."""
        if (ended := super().failure(phase)) is not None:
            return ended
        health = get(self._started.plan.port, "/health")
        if health is None or health[0] != 503:
            return None
        started = self._started
        return started.memory.blame(self._way.diagnose(None, phase, started.text()))
