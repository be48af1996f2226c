"""The simulated server as uvicorn runs it: from a bound socket to an exit code."""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import Callable
from types import FrameType

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from autotune.engines.simulated.api import Api
from autotune.engines.simulated.startup import Launch

_EXIT_AFTER_DEATH_S = 3.0  # seen: vLLM's API server ends 3 s after its engine died
_DRAIN_S = 2  # after SIGTERM, for aborted streams to reach their clients


MakeApi = Callable[[Launch, Callable[[int], None]], Api]


def serve(launch: Launch, sock: socket.socket, make_api: MakeApi = Api) -> int:
    """Serve until told to stop or dead; returns the exit code."""
    server = _Server(launch, make_api)
    server.run(sockets=[sock])
    return server.exit_code


class _Server(uvicorn.Server):
    """uvicorn that ends with 0 after SIGTERM, as vLLM does, or doesn't hear it on command."""

    def __init__(self, launch: Launch, make_api: MakeApi) -> None:
        self._api = make_api(launch, self._end_soon)
        self._death_s = _EXIT_AFTER_DEATH_S / launch.sim.time_scale
        self.exit_code = 0
        values = launch.serve.values
        config = uvicorn.Config(
            _Transport(self._api.app()),
            log_level=str(values.get("uvicorn_log_level") or "info"),
            access_log=not values.get("disable_uvicorn_access_log"),
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=_DRAIN_S,
        )
        super().__init__(config)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop on a signal, and don't raise it again afterwards as uvicorn would."""
        del frame
        if sig == signal.SIGTERM and "ignores_sigterm" in self._api.faults:
            return
        self._api.log.write("[shutdown] API server: shutdown triggered", source="launcher.py:254")
        self._api.core.abort_all()
        self.should_exit = True

    def _end_soon(self, exit_code: int) -> None:
        if not self._api.ends_when_dead:
            return
        self.exit_code = exit_code
        asyncio.get_running_loop().call_later(self._death_s, setattr, self, "should_exit", True)


class _Transport:
    """Outermost application: lets `half_chunk` reach the socket, which no ASGI message can break."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["sim.transport"] = getattr(getattr(send, "__self__", None), "transport", None)
        await self._app(scope, receive, send)
