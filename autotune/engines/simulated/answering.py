"""From a valid request to its response: tickets to the core, chunks or a whole answer back, and the faults between."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Awaitable, Sequence
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from autotune.engines.simulated import logs
from autotune.engines.simulated.core import Core
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.protocol import Answer, Generation, error_body
from autotune.engines.simulated.speech import Damage
from autotune.engines.simulated.tickets import EngineDeadError, Inbox, Ticket
from autotune.engines.simulated.writer import DONE, Writer, sse

DEAD = error_body(500, logs.DEAD, kind="InternalServerError")
_INTERNAL = error_body(500, "Internal server error", kind="InternalServerError")


class Answering:
    """Answers requests. `interval`: tokens a chunk after the first; `details`: report cached tokens in usage."""

    def __init__(
        self, core: Core, faults: Faults, *, model: str, interval: int, details: bool, damage: Damage = Damage.NONE
    ) -> None:
        self._core = core
        self._damage = damage
        self._faults = faults
        self._model = model
        self._interval = int(faults.number("tokens_per_chunk", interval))
        self._details = details
        self._asked = 0
        self._answered = 0

    async def respond(self, request: Request, generation: Generation, answers: Sequence[Answer]) -> Response:
        """Answer one request; raises EngineDeadError when the engine is gone before the first byte."""
        if self._core.dead:
            raise EngineDeadError
        self._die_after()
        if self._fails_now():
            return _event_stream(_error_stream()) if generation.stream else JSONResponse(_INTERNAL, status_code=500)
        writer = Writer(generation, self._model, self._faults, details=self._details, damage=self._damage)
        tickets = self._tickets(generation, answers)
        if generation.stream:
            return _event_stream(self._stream(writer, answers, tickets, request.scope["sim.transport"]))
        await _unless_disconnected(request, self._exhaust(tickets))
        self._answered += 1
        return JSONResponse(writer.whole(answers, _cached(tickets)))

    def _die_after(self) -> None:
        limit = self._faults.number("dies_after")
        if limit and self._answered >= limit:
            os.kill(os.getpid(), signal.SIGKILL)

    def _fails_now(self) -> bool:
        """Spread failures evenly, so that a share of 0.25 is every fourth request."""
        share = self._faults.number("error_event")
        self._asked += 1
        return int(self._asked * share) > int((self._asked - 1) * share)

    def _tickets(self, generation: Generation, answers: Sequence[Answer]) -> list[Ticket]:
        inbox: Inbox = asyncio.Queue()
        return [
            Ticket(
                prompt=prompt,
                output_tokens=answer.tokens,
                finish_reason=answer.finish_reason,
                interval=self._interval if generation.stream else answer.tokens,
                hold_first="tokens_per_chunk" in self._faults or not generation.stream,
                index=index,
                inbox=inbox,
            )
            for index, (prompt, answer) in enumerate(zip(generation.prompts, answers, strict=True))
        ]

    async def _exhaust(self, tickets: Sequence[Ticket]) -> None:
        async with contextlib.aclosing(self._core.generate(tickets)) as deltas:
            async for _delta in deltas:
                pass

    async def _stream(
        self,
        writer: Writer,
        answers: Sequence[Answer],
        tickets: Sequence[Ticket],
        transport: Any,  # noqa: ANN401 - asyncio's or uvloop's
    ) -> AsyncGenerator[bytes]:
        sent = 0
        try:
            async with contextlib.aclosing(self._chunks(writer, answers, tickets)) as chunks:
                async for chunk in chunks:
                    sent += 1
                    if sent == 2 and "half_chunk" in self._faults:
                        _break_off(transport, chunk)
                        return
                    yield chunk
        except EngineDeadError:
            yield sse(DEAD)
        self._answered += 1
        yield DONE

    async def _chunks(
        self, writer: Writer, answers: Sequence[Answer], tickets: Sequence[Ticket]
    ) -> AsyncGenerator[bytes]:
        produced = [0] * len(answers)
        async with contextlib.aclosing(self._core.generate(tickets)) as deltas:
            async for index, delta in deltas:
                if writer.request.chat and not produced[index]:
                    yield writer.role_chunk()
                span = (produced[index], produced[index] + delta.tokens)
                produced[index] = span[1]
                yield writer.chunk(index, answers[index], span, len(tickets[index].prompt))
        if writer.request.include_usage:
            yield writer.usage_chunk(answers, _cached(tickets))


def _cached(tickets: Sequence[Ticket]) -> int:
    return sum(ticket.cached_tokens for ticket in tickets)


def _event_stream(chunks: AsyncGenerator[bytes]) -> Response:
    return StreamingResponse(chunks, media_type="text/event-stream")


async def _error_stream() -> AsyncGenerator[bytes]:
    yield sse(_INTERNAL)
    yield DONE


def _break_off(transport: Any, chunk: bytes) -> None:  # noqa: ANN401 - asyncio's or uvloop's
    """Announce a chunk, send half of it, close the socket."""
    transport.write(f"{len(chunk):x}\r\n".encode() + chunk[: len(chunk) // 2])
    transport.close()


async def _unless_disconnected(request: Request, work: Awaitable[None]) -> None:
    """Wait for `work`, but drop it (and with it the engine's request) when the client goes away."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    tasks = (asyncio.ensure_future(work), asyncio.create_task(gone()))
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
    if tasks[0].done() and not tasks[0].cancelled():
        tasks[0].result()
