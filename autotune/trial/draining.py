"""Between two levels: wait until a server has nothing left to do, so that one level's queue is not the next one's."""

from __future__ import annotations

import time

from autotune import load
from autotune.engines.base import Server, VirtualServer
from autotune.records.trial import RequestPlan

DEADLINE_S = 30.0
EVERY_S = 0.1
IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting")
CALM = 2.0  # times the TTFT of a lone request at first
_PROBE_TOKENS = tuple(range(200, 232))


class Drain:
    """Made while the server is idle: a server without gauges is told idle by the TTFT that a lone request has then."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._calm_ms = None if self._gauges() or isinstance(server, VirtualServer) else self._lone_ttft_ms()

    def __call__(self) -> bool:
        """Wait until the server is idle, DEADLINE_S at most; tells whether it is."""
        if isinstance(self._server, VirtualServer):
            return True
        deadline_s = time.monotonic() + DEADLINE_S
        while not self._idle():
            if time.monotonic() > deadline_s or self._server.exit_code() is not None:
                return False
            time.sleep(EVERY_S)
        return True

    def _idle(self) -> bool:
        gauges = self._gauges()
        if gauges:
            return not any(gauges)
        if self._calm_ms is None:
            return True
        ttft_ms = self._lone_ttft_ms()
        return ttft_ms is not None and ttft_ms <= CALM * self._calm_ms

    def _gauges(self) -> list[float]:
        values = self._server.metrics()
        return [values[name] for name in IDLE if name in values]

    def _lone_ttft_ms(self) -> float | None:
        plan = RequestPlan(
            index=0, at_s=None, output_tokens=1, prompt_tokens=len(_PROBE_TOKENS), prompt_ids=_PROBE_TOKENS
        )
        return load.probe(self._server.endpoint, plan, timeout_s=DEADLINE_S).ttft_ms
