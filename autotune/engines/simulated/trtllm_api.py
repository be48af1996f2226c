"""The routes where `trtllm-serve` answers otherwise than vLLM: its version, its models, JSON metrics, long prompts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, ClassVar

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from autotune.engines.simulated import trtllm_logs
from autotune.engines.simulated.api import Api
from autotune.engines.simulated.core import CoreLog
from autotune.engines.simulated.protocol import ApiError, Generation
from autotune.engines.simulated.startup import Launch
from autotune.models.scheduler import Step

_KEPT_ITERATIONS = 1000  # max_stats_len
_FORBIDDEN = ("prompt_logprobs", "return_token_ids")


class TrtLlmApi(Api):
    """The same engine core behind TensorRT-LLM's routes. After a rank's death it lives on and answers 503."""

    log: ClassVar[CoreLog] = trtllm_logs
    ends_when_dead = False
    tells_stats = False

    def __init__(self, launch: Launch, on_death: Callable[[int], None]) -> None:
        super().__init__(launch, on_death)
        self._iterations: deque[Mapping[str, Any]] = deque(maxlen=_KEPT_ITERATIONS)

    def stepped(self, step: Step) -> None:
        """Keep what the iteration tells, where that is asked for."""
        if self.launch.serve.values.get("enable_iter_perf_stats"):
            self._iterations.append(self._iteration(step))

    def _iteration(self, step: Step) -> Mapping[str, Any]:
        scheduler, block = self.scheduler, self.launch.config.block_size
        hits, queries = scheduler.prefix_hits_tokens_total, scheduler.prefix_queries_tokens_total
        used = scheduler.total_blocks - scheduler.free_blocks
        return {
            "timestamp": time.time(),
            "iterLatencyMS": step.duration_s * 1e3,
            "numActiveRequests": scheduler.running,
            "numQueuedRequests": scheduler.waiting,
            "numCompletedRequests": len(step.finished_ids),
            "kvCacheStats": {
                "maxNumBlocks": scheduler.total_blocks,
                "freeNumBlocks": scheduler.free_blocks,
                "usedNumBlocks": used,
                "tokensPerBlock": block,
                "reusedBlocks": hits // block,
                "missedBlocks": (queries - hits) // block,
                "cacheHitRate": hits / queries if queries else 0.0,
            },
            "inflightBatchingStats": {
                "numScheduledRequests": scheduler.running,
                "numGenRequests": len(step.token_ids),
                "numCtxTokens": step.prefill_tokens,
                "numPausedRequests": len(step.preempted_ids),
            },
        }

    async def metrics_page(self, _request: Request) -> Response:
        """The iterations since the page was last read."""
        found = list(self._iterations)
        self._iterations.clear()
        return JSONResponse(found)

    async def version(self, _request: Request) -> Response:
        """A version that says that this is not TensorRT-LLM."""
        return JSONResponse({"version": trtllm_logs.SIMULATED_VERSION, "simulated": True})

    async def models(self, _request: Request) -> Response:
        """The one model served; its length is not told."""
        card = {"id": self.limits.model, "object": "model", "created": int(time.time()), "owned_by": "tensorrt_llm"}
        return JSONResponse({"object": "list", "data": [card]})

    def understood(self, body: Mapping[str, Any], *, chat: bool) -> Generation:
        """Fields of vLLM's own are refused, and `echo` tells nothing of the prompt's log-probabilities, as 1.2 to 1.4
        have it. Without chunked prefill a prompt must fit one step."""
        for name in _FORBIDDEN:
            if name in body:
                raise ApiError(400, f"[{{'type': 'extra_forbidden', 'loc': ('body', '{name}')}}]")
        config = self.launch.config
        generation = replace(super().understood(body, chat=chat), echo=False)
        if not config.chunked_prefill:
            longest, most = max(map(len, generation.prompts)), config.max_num_batched_tokens
            if longest > most:
                raise ApiError(400, f"The prompt length ({longest}) should not exceed max_num_tokens ({most})")
        return generation
