"""The HTTP routes: OpenAI's API, health, metrics and the rest of what a tuner asks a vLLM server for.

What generates tokens is handed to `answering`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, ClassVar

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from autotune.engines.simulated import logs
from autotune.engines.simulated.answering import DEAD, Answering
from autotune.engines.simulated.core import Core, CoreLog
from autotune.engines.simulated.metrics import Metrics
from autotune.engines.simulated.protocol import (
    Answer,
    ApiError,
    Generation,
    Limits,
    error_body,
    plan_answer,
    read_request,
)
from autotune.engines.simulated.speech import damage_of
from autotune.engines.simulated.startup import Launch
from autotune.engines.simulated.tickets import EngineDeadError
from autotune.engines.simulated.tokens import PrefixIndex, Tokenizer, decode
from autotune.models.scheduler import Scheduler, Step

_REMEMBERED_BLOCKS = 1_000_000
_UNAVAILABLE = error_body(503, "The engine is not ready.", kind="ServiceUnavailableError")

Handler = Callable[[Request], Awaitable[Response]]


class Api:
    """The routes and what they share. `on_death` is told the exit code when the engine dies.

    Another face overrides what its engine answers differently, and `log`, the module in whose words it speaks.
    """

    log: ClassVar[CoreLog] = logs
    ends_when_dead = True
    tells_stats = True

    def __init__(self, launch: Launch, on_death: Callable[[int], None]) -> None:
        self.launch = launch
        self.faults = launch.sim.faults
        self._created = int(time.time())
        config, values = launch.config, launch.serve.values
        self.limits = Limits(
            model=launch.serve.served_name,
            max_model_len=config.max_model_len,
            tokenizer=Tokenizer(config.shape.vocab),
            force_usage=bool(values.get("enable_force_include_usage")),
            seed=launch.sim.seed,
            damage=damage_of(self.faults, values),
        )
        self.metrics = Metrics(self.limits.model, launch.cache_config(), lies="lies_in_metrics" in self.faults)
        prefixes = PrefixIndex(block_tokens=config.block_size, capacity=_REMEMBERED_BLOCKS)
        self.scheduler = Scheduler(config, seed=launch.sim.seed)
        self.core = Core(
            self.scheduler,
            self.metrics,
            self.faults,
            time_scale=launch.sim.time_scale,
            prefixes=prefixes if config.prefix_caching else None,
            on_death=on_death,
            on_step=self.stepped,
            log=self.log,
        )
        self._answering = Answering(
            self.core,
            self.faults,
            model=self.limits.model,
            interval=config.stream_interval,
            damage=self.limits.damage,
            details=bool(values.get("enable_prompt_tokens_details")),
        )

    def stepped(self, step: Step) -> None:
        """Told of every step of the engine."""

    def app(self) -> Starlette:
        """The application with its routes."""
        return Starlette(
            routes=[
                self._route("/health", self.health),
                self._route("/ping", self.health, "GET", "POST"),
                self._route("/version", self.version),
                self._route("/metrics", self.metrics_page),
                self._route("/v1/models", self.models),
                self._route("/v1/completions", self.completions, "POST"),
                self._route("/v1/chat/completions", self.chat_completions, "POST"),
                self._route("/tokenize", self.tokenize, "POST"),
                self._route("/detokenize", self.detokenize, "POST"),
                self._route("/reset_prefix_cache", self.reset_prefix_cache, "POST"),
            ],
            lifespan=self._lifespan,
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _app: Starlette) -> AsyncIterator[None]:
        tasks = [asyncio.create_task(self.core.run())]
        if self.tells_stats:
            tasks.append(asyncio.create_task(self.core.log_stats()))
        yield
        for task in tasks:
            task.cancel()

    def _route(self, path: str, handler: Handler, *methods: str) -> Route:
        return Route(path, self._guarded(handler), methods=methods or ("GET",))

    def _guarded(self, handler: Handler) -> Handler:
        """Turn refusals into OpenAI errors, check the key, and be unavailable on command."""
        keys = self.launch.serve.values.get("api_key") or tuple(filter(None, (os.environ.get("VLLM_API_KEY"),)))

        async def handle(request: Request) -> Response:
            if "always_503" in self.faults:
                return JSONResponse(_UNAVAILABLE, status_code=503)
            if keys and request.url.path.startswith("/v1") and _bearer(request) not in keys:
                return JSONResponse({"error": "Unauthorized"}, status_code=401)
            try:
                return await handler(request)
            except ApiError as refusal:
                return JSONResponse(refusal.body, status_code=refusal.status)
            except EngineDeadError:
                return JSONResponse(DEAD, status_code=500)

        return handle

    # --- what is asked about the server -------------------------------------------------------------------------------

    async def health(self, _request: Request) -> Response:
        """200 while the engine lives, 503 after."""
        return Response(status_code=503 if self.core.dead else 200)

    async def version(self, _request: Request) -> Response:
        """A version that says that this is not vLLM."""
        return JSONResponse({"version": logs.SIMULATED_VERSION, "simulated": True})

    async def metrics_page(self, _request: Request) -> Response:
        """Prometheus' text format."""
        return PlainTextResponse(self.metrics.page(self.core.gauges()), media_type="text/plain; version=0.0.4")

    async def models(self, _request: Request) -> Response:
        """The one model served."""
        card = {
            "id": self.limits.model,
            "object": "model",
            "created": self._created,
            "owned_by": "vllm",
            "root": self.launch.serve.model,
            "parent": None,
            "max_model_len": self.limits.max_model_len,
        }
        return JSONResponse({"object": "list", "data": [card]})

    async def tokenize(self, request: Request) -> Response:
        """Ids of a prompt or of messages."""
        body = await read_json(request)
        limits = self.limits
        if "messages" in body:
            tokens = read_request(body | {"max_tokens": 1}, limits, chat=True).prompts[0]
        else:
            tokens = limits.tokenizer.encode(str(body.get("prompt", "")))
        return JSONResponse({"count": len(tokens), "max_model_len": limits.max_model_len, "tokens": tokens})

    async def detokenize(self, request: Request) -> Response:
        """The text of ids."""
        return JSONResponse({"prompt": decode((await read_json(request)).get("tokens", []))})

    async def reset_prefix_cache(self, _request: Request) -> Response:
        """Forget cached prefixes (vLLM offers this in its development mode)."""
        self.core.reset_prefix_cache()
        return Response(status_code=200)

    # --- generation ---------------------------------------------------------------------------------------------------

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions."""
        return await self._generate(request, chat=False)

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions."""
        return await self._generate(request, chat=True)

    async def _generate(self, request: Request, *, chat: bool) -> Response:
        generation = self.understood(await read_json(request), chat=chat)
        answers = [plan_answer(generation, prompt, self.limits) for prompt in generation.prompts]
        return await self.answer(request, generation, answers)

    async def answer(self, request: Request, generation: Generation, answers: Sequence[Answer]) -> Response:
        """Have this face's engine answer."""
        return await self._answering.respond(request, generation, answers)

    def understood(self, body: Mapping[str, Any], *, chat: bool) -> Generation:
        """What a request asks for; raises ApiError for what this face refuses."""
        return read_request(body, self.limits, chat=chat)


def _bearer(request: Request) -> str:
    return request.headers.get("authorization", "").removeprefix("Bearer ")


async def read_json(request: Request) -> dict[str, Any]:
    """The body as an object; raises ApiError for anything else."""
    try:
        body = json.loads(await request.body())
    except ValueError as error:
        raise ApiError(400, f"The request body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise ApiError(400, "The request body must be a JSON object.")
    return body
