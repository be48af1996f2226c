"""A scheduler to drive one step at a time, in plain Python: requests in, tokens out, no clock of its own."""

from __future__ import annotations

import random
from dataclasses import dataclass

from autotune.models import kernel as k
from autotune.models.config import SchedulerConfig
from autotune.models.memory import plan_memory
from autotune.models.steptime import costs_of, limits_of


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One scheduler step: its seconds, ids that got a token, ids that ended with it, ids sent back to the queue.

    `prefill_tokens` counts what was computed of prompts in it.
    """

    duration_s: float
    token_ids: tuple[int, ...]
    finished_ids: tuple[int, ...]
    preempted_ids: tuple[int, ...]
    prefill_tokens: int


class Scheduler:
    """vLLM's scheduler on a simulated GPU: `add` requests, then call `step` until it returns None.

    `blocks` overrides the KV blocks that fit the GPU. `noise_ratio` is the standard deviation of a step's time,
    `speed` > 1 a faster GPU. The API server is not part of it: a real one stands in front.
    """

    def __init__(
        self,
        config: SchedulerConfig,
        *,
        blocks: int | None = None,
        seed: int = 0,
        noise_ratio: float = 0.0,
        speed: float = 1.0,
    ) -> None:
        self.config = config
        usable = plan_memory(config).blocks if blocks is None else blocks
        self._limits = limits_of(config, usable)
        free = {"api_latency": 0.0, "api_per_request": 0.0, "api_per_prompt_token": 0.0, "api_per_token": 0.0}
        self._costs = costs_of(config, speed=speed)._replace(**free)
        self._requests: list[k.Request] = []
        self._group_states: list[k.Group] = []
        self._state = self._empty_state()
        self._log = k.Log([], [], [], [])
        self._groups: dict[int, int] = {}
        self._added: list[int] = []  # since the last step
        self._seen: list[int] = []  # before it, but after the coming one was decided
        self._random = random.Random(seed)  # noqa: S311 - simulated jitter, nothing secret
        self._noise_ratio = noise_ratio

    def _empty_state(self) -> k.State:
        n = [0] * k.COUNTERS
        for end in (k.RUN_HEAD, k.RUN_TAIL, k.WAIT_HEAD, k.WAIT_TAIL):
            n[end] = -1
        n[k.FREE] = self._limits.blocks
        seqs = self._limits.max_num_seqs
        return k.State(
            req=self._requests,
            groups=self._group_states,
            prefilling=[0] * seqs,
            phase=[0] * self._limits.block_size,
            bucket=[-1] * self._limits.ring,
            ended=[0] * seqs,
            evicted=[0] * seqs,
            n=n,
            t=[0.0] * k.TIMES,
        )

    def add(
        self,
        prompt_tokens: int,
        output_tokens: int,
        prefix_group: int = -1,
        prefix_tokens: int = 0,
        arrival_s: float = 0.0,
    ) -> int:
        """Queue a request and return its id (0, 1, …). Raises ValueError when it exceeds max_model_len."""
        if prompt_tokens < 1 or output_tokens < 1:
            raise ValueError(
                f"a request needs a prompt and an output, but has {prompt_tokens} and {output_tokens} tokens"
            )
        if prompt_tokens + output_tokens > self.config.max_model_len:
            raise ValueError(
                f"prompt ({prompt_tokens}) and output ({output_tokens}) tokens exceed max_model_len "
                f"({self.config.max_model_len})"
            )
        request = len(self._requests)
        self._requests.append(
            k.Request(
                arrival=arrival_s,
                prompt=prompt_tokens,
                output=output_tokens,
                group=self._group(prefix_group),
                prefix=min(prefix_tokens, prompt_tokens),
            )
        )
        self._added.append(request)
        return request

    def _group(self, name: int) -> int:
        if name < 0:
            return -1
        if name not in self._groups:
            self._groups[name] = len(self._groups)
            self._group_states.append(k.Group())
        return self._groups[name]

    def _enqueue(self) -> None:
        """Queue what the coming step can see. Under async scheduling it was decided as the last one began, so whoever
        was added meanwhile is seen one step later; an idle engine sees all."""
        if self.running == 0 or not self.config.async_scheduling:
            self._seen, self._added = [*self._seen, *self._added], []
        for request in self._seen:
            k.enqueue(self._state, request)
        self._seen, self._added = self._added, []

    def abort(self, request: int) -> None:
        """Forget a request, waiting or running; no-op when it has ended."""
        self._added, self._seen = ([r for r in ids if r != request] for ids in (self._added, self._seen))
        k.abort(self._state, self._limits, self._log, request)

    def step(self) -> Step | None:
        """Run one step; None when nothing can run (no requests, or the first in the queue can't be admitted)."""
        noise = max(0.5, self._random.gauss(1.0, self._noise_ratio)) if self._noise_ratio else 1.0
        self._enqueue()
        state = self._state
        duration = k.step(state, self._limits, self._costs, self._log, noise)
        if duration == 0.0:
            return None
        ended = tuple(state.ended[: state.n[k.ENDED]])
        return Step(
            duration_s=duration,
            token_ids=(*self._decoding(), *ended),
            finished_ids=ended,
            preempted_ids=tuple(state.evicted[: state.n[k.EVICTED]]),
            prefill_tokens=state.n[k.PREFILLED],
        )

    def _decoding(self) -> list[int]:
        """Running requests that decode now: each got a token in the step just made."""
        state, ids = self._state, []
        request = state.n[k.RUN_HEAD]
        while request >= 0:
            if state.req[request].state == k.DECODE:
                ids.append(request)
            request = state.req[request].next
        return ids

    @property
    def running(self) -> int:
        """Requests that hold KV blocks."""
        return self._count(k.DECODING) + self._count(k.PREFILLING)

    @property
    def waiting(self) -> int:
        """Requests in the queue, preempted ones included."""
        return self._count(k.WAITING_N) + len(self._added) + len(self._seen)

    @property
    def total_blocks(self) -> int:
        """KV blocks in all."""
        return self._limits.blocks

    @property
    def free_blocks(self) -> int:
        """Blocks that no running request holds; prefixes may still be cached in them."""
        return self._count(k.FREE)

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV blocks that running requests hold."""
        return 1.0 - self.free_blocks / self.total_blocks if self.total_blocks else 0.0

    @property
    def preemptions_total(self) -> int:
        """Times that a request was sent back to the queue."""
        return self._count(k.PREEMPTIONS)

    @property
    def prefix_queries_tokens_total(self) -> int:
        """Prompt tokens looked up in the prefix cache."""
        return self._count(k.QUERIED)

    @property
    def prefix_hits_tokens_total(self) -> int:
        """Prompt tokens found there."""
        return self._count(k.HIT)

    def cached_tokens(self, request: int) -> int:
        """Tokens of the request that were found in the prefix cache when it was last admitted."""
        return int(self._state.req[request].cached)

    def waits(self, request: int) -> bool:
        """Whether the request has not been admitted yet."""
        return self._requests[request].state in {k.NEW, k.WAITING} and not self._requests[request].preempted

    def produced_tokens(self, request: int) -> int:
        """Output tokens of the request so far."""
        return int(k.produced(self._state, request))

    def _count(self, counter: int) -> int:
        return int(self._state.n[counter])
