"""A running Triton, as the stages behind the launch see it."""

# ruff: noqa: D102  the protocol in engines/base.py documents these

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence

from autotune.engines.net import get
from autotune.engines.served import LaunchedServer
from autotune.engines.simulated.tokens import decode
from autotune.engines.tensorrt_llm.server import TrtLlmServer
from autotune.engines.triton.repository import BACKEND, FRONT
from autotune.records.trial import Endpoint, Failure, Phase

_SAMPLE = re.compile(r'^(nv_\w+)\{[^}]*model="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
US = 1e-6

METRICS: Mapping[str, tuple[str, str, float]] = {
    "triton:completed_requests_total": ("nv_inference_request_success", FRONT, 1),
    "triton:failed_requests_total": ("nv_inference_request_failure", FRONT, 1),
    "triton:waiting_requests": ("nv_inference_pending_request_count", BACKEND, 1),
    "triton:executions_total": ("nv_inference_exec_count", BACKEND, 1),
    "triton:queue_seconds_sum": ("nv_inference_queue_duration_us", BACKEND, US),
    "triton:queue_seconds_count": ("nv_inference_request_success", BACKEND, 1),
}
"""What is read of Triton's page: its name there, of which model, and its unit. What waits in Triton's own queue has not
come to TensorRT-LLM yet; how many run there, no page tells."""


class TritonServer(TrtLlmServer):
    """Follows `engines.base.Server` and `engines.base.Negotiates`."""

    @property
    def endpoint(self) -> Endpoint:
        """Of the models that it lists, the one that speaks the frontend's language."""
        plan = self._started.plan
        return Endpoint(host=plan.host, port=plan.port, model_name=FRONT)

    @property
    def prompt_writer(self) -> Callable[[Sequence[int]], str] | None:
        return decode if self.simulated else None

    def metrics(self) -> Mapping[str, float]:
        found = {(name, model): value for name, model, value in _SAMPLE.findall(self._page("/metrics"))}
        return {
            ours: float(found[theirs, model]) * unit
            for ours, (theirs, model, unit) in METRICS.items()
            if (theirs, model) in found
        }

    def failure(self, phase: Phase) -> Failure | None:
        """Also of one that lives on without its model: it is not ready any more."""
        if (ended := LaunchedServer.failure(self, phase)) is not None:
            return ended
        started = self._started
        health = get(started.plan.port, started.plan.health_path)
        if health is None or health[0] == 200:
            return None
        return started.memory.blame(self._way.diagnose(None, phase, started.text()))
