"""The routes of Triton's OpenAI-compatible frontend, over engines that are TensorRT-LLM's.

After openai_frontend of Triton 2.73: unknown fields are refused (422), prompts are one string, `min_tokens` and
`ignore_eos` are taken and not heeded, every answer ends with `stop`, and a refusal is `{"detail": …}`.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import replace
from itertools import cycle
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from autotune.engines.simulated.api import Api, Handler, read_json
from autotune.engines.simulated.protocol import ApiError, plan_answer
from autotune.engines.simulated.startup import Launch
from autotune.engines.simulated.tickets import EngineDeadError
from autotune.engines.simulated.triton_batcher import Batcher
from autotune.engines.simulated.triton_repository import Repository
from autotune.engines.simulated.trtllm_api import TrtLlmApi
from autotune.engines.simulated.trtllm_logs import VERSION

TRITON_VERSION = f"2.73.0+{VERSION}+simulated"
_COMMON = {
    "model", "stream", "stream_options", "max_tokens", "min_tokens", "ignore_eos", "temperature", "top_p", "seed",
    "stop", "n", "logit_bias", "logprobs", "frequency_penalty", "presence_penalty", "user",
}  # fmt: skip
FIELDS = {
    False: _COMMON | {"prompt", "best_of", "echo", "suffix"},
    True: _COMMON | {"messages", "max_completion_tokens", "response_format", "tools", "tool_choice", "top_logprobs"},
}
"""What a request may have, by whether it is a chat's: all else is refused."""


class TritonApi(TrtLlmApi):
    """One frontend, Triton's queue, and as many engines as there are instances."""

    def __init__(self, launch: Launch, on_death: Callable[[int], None], repository: Repository) -> None:
        super().__init__(launch, on_death)
        self._repository = repository
        self._instances: list[Api] = [self]
        self._instances += [TrtLlmApi(launch, on_death) for _ in range(repository.instances - 1)]
        self._turns: Iterator[Api] = cycle(self._instances)
        delay_s = repository.delay_s and repository.delay_s / launch.sim.time_scale
        self.batcher = Batcher(preferred=repository.preferred, most=repository.max_batch, delay_s=delay_s)
        self._answered = 0
        self._refused = 0

    def app(self) -> Starlette:
        """The application with its routes."""
        return Starlette(
            routes=[
                self._detailed("/health/ready", self.health),
                self._detailed("/version", self.version),
                self._detailed("/metrics", self.metrics_page),
                self._detailed("/v1/models", self.models),
                self._detailed("/v1/completions", self.completions, "POST"),
                self._detailed("/v1/chat/completions", self.chat_completions, "POST"),
            ],
            lifespan=self._all_run,
        )

    def _detailed(self, path: str, handler: Handler, *methods: str) -> Route:
        """Refusals in FastAPI's form."""

        async def handle(request: Request) -> Response:
            if "always_503" in self.faults:
                return JSONResponse({"detail": "No attached inference engine"}, status_code=500)
            try:
                return await handler(request)
            except ApiError as refusal:
                self._refused += 1
                return JSONResponse({"detail": str(refusal)}, status_code=refusal.status)
            except EngineDeadError:
                return JSONResponse({"detail": "Stub process 'tensorrt_llm_0_0' is not healthy."}, status_code=500)

        return Route(path, handle, methods=methods or ("GET",))

    @contextlib.asynccontextmanager
    async def _all_run(self, _app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(each.core.run()) for each in self._instances]
        yield
        for task in tasks:
            task.cancel()

    # --- what is asked about the server -------------------------------------------------------------------------------

    async def health(self, _request: Request) -> Response:
        """200 while every instance lives, 400 after."""
        if any(each.core.dead for each in self._instances):
            raise ApiError(400, "Attached inference engine is not ready for inference requests.")
        return Response(status_code=200)

    async def version(self, _request: Request) -> Response:
        """What the real frontend doesn't have: that this is not Triton."""
        return JSONResponse({"version": TRITON_VERSION, "simulated": True})

    async def models(self, _request: Request) -> Response:
        """Every model of the repository."""
        cards = [
            {"id": name, "object": "model", "created": int(time.time()), "owned_by": "Triton Inference Server"}
            for name in (self._repository.front, self._repository.backend)
        ]
        return JSONResponse({"object": "list", "data": cards})

    async def metrics_page(self, _request: Request) -> Response:
        """Triton's own figures, of both models."""
        return PlainTextResponse("\n".join(self._samples()) + "\n", media_type="text/plain; version=0.0.4")

    def _samples(self) -> Iterator[str]:
        batcher, done = self.batcher, sum(sum(each.metrics.finished.values()) for each in self._instances)
        for model in (self._repository.front, self._repository.backend):
            inner = model == self._repository.backend
            samples = {
                "nv_inference_request_success": done,
                "nv_inference_request_failure": self._refused,
                "nv_inference_exec_count": batcher.batches if inner else done,
                "nv_inference_queue_duration_us": round(batcher.queued_s * 1e6) if inner else 0,
                "nv_inference_pending_request_count": batcher.waiting if inner else 0,
            }
            yield from (f'{name}{{model="{model}",version="1"}} {value}' for name, value in samples.items())

    # --- generation ---------------------------------------------------------------------------------------------------

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        body = await read_json(request)
        _check(body, chat=chat)
        if body.get("model") not in (self._repository.front, self._repository.backend):
            raise ApiError(400, f"Unknown model: {body.get('model')}")
        generation = self.understood({**body, "model": self.limits.model}, chat=chat)
        generation = replace(generation, min_tokens=0, ignore_eos=False)
        await self.batcher.turn()
        instance = next(self._turns)
        answers = [
            replace(plan_answer(generation, prompt, self.limits), finish_reason="stop") for prompt in generation.prompts
        ]
        return await instance.answer(request, generation, answers)


def _check(body: dict[str, Any], *, chat: bool) -> None:
    unknown = sorted(body.keys() - FIELDS[chat])
    if unknown:
        raise ApiError(422, f"Extra inputs are not permitted: {', '.join(unknown)}")
    if not chat and not isinstance(body.get("prompt"), str):
        raise ApiError(400, "only single string input is supported")
    if body.get("stream_options") and not body.get("stream"):
        raise ApiError(400, "`stream_options` can only be used when `stream` is True")
