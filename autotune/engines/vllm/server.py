"""A running vLLM, as the stages behind the launch see it."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autotune.engines.launching import Started, Way
from autotune.engines.served import LaunchedServer
from autotune.engines.vllm.logs import log_warnings, metric_sums, resolved_settings


class VllmServer(LaunchedServer):
    """Follows `engines.base.Server`."""

    def __init__(self, way: Way, started: Started, model: str) -> None:
        super().__init__(way, started, model)
        self._first_metrics = self._page("/metrics")

    @property
    def max_model_len(self) -> int | None:
        length = self._card.get("max_model_len")
        return length if isinstance(length, int) else None

    def resolved(self) -> Mapping[str, Any]:
        return resolved_settings(self._started.text(), self._first_metrics)

    def warnings(self) -> tuple[str, ...]:
        return log_warnings(self._started.text())

    def metrics(self) -> Mapping[str, float]:
        return metric_sums(self._page("/metrics"))
