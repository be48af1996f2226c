"""The engine loop: steps the scheduler model at its own pace and hands each request its tokens when they are due.

In: prompts as token ids. Out: `Delta`s, several requests' at every step. The scheduler decides who runs and how long a
step takes; this loop waits that long (divided by the time scale), then delivers. It never skips a token: when the
process can't keep up, time stretches and the log says so.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import Protocol

from autotune.engines.simulated import logs
from autotune.engines.simulated.faults import Faults
from autotune.engines.simulated.metrics import Gauges, Metrics
from autotune.engines.simulated.tickets import Delta, EngineDeadError, Ticket
from autotune.engines.simulated.tokens import Prefix, PrefixIndex
from autotune.models.scheduler import Scheduler, Step

_MAX_LAG_S = 0.25  # behind by more than this, the loop gives up catching up
_STALL_EVERY_STEPS = 20
_STATS_EVERY_S = 10.0  # vLLM's interval of its "Engine 000" line
_OOM = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.96 GiB. GPU 0 has a total capacity of 79.18 GiB "
    "of which 1.21 GiB is free. Including non-PyTorch memory, this process has 77.96 GiB memory in use."
)
_CRASH = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"


class CoreLog(Protocol):
    """In whose words the engine speaks: the functions of `logs`, or of another face's module."""

    def write(self, text: str, *, source: str) -> None:
        """A line of no weight."""

    def warn(self, text: str, *, source: str) -> None:
        """A warning."""

    def engine_death(self, cause: str) -> None:
        """The lines of an engine that died while serving."""


class Core:
    """The engine: one task runs `run`, requests use `generate`. `on_death` is told the exit code to end with."""

    def __init__(
        self,
        scheduler: Scheduler,
        metrics: Metrics,
        faults: Faults,
        *,
        time_scale: float,
        prefixes: PrefixIndex | None,
        on_death: Callable[[int], None],
        on_step: Callable[[Step], None] = lambda _: None,
        log: CoreLog = logs,
    ) -> None:
        self._on_step = on_step
        self._log = log
        self._scheduler = scheduler
        self._metrics = metrics
        self._faults = faults
        self._scale = time_scale
        self._prefixes = prefixes
        self._on_death = on_death
        self._tickets: dict[int, Ticket] = {}
        self._queued: deque[Ticket] = deque()  # in the order in which the scheduler admits them
        self._wake = asyncio.Event()
        self._steps = 0
        self._simulated_s = 0.0
        self._warned_s = 0.0
        self.dead = False

    # --- requests -----------------------------------------------------------------------------------------------------

    async def generate(self, tickets: Sequence[Ticket]) -> AsyncGenerator[tuple[int, Delta]]:
        """Yield (index, delta) until all have their tokens; leaving early aborts them. Raises EngineDeadError.

        All tickets share one inbox.
        """
        try:
            for ticket in tickets:
                self._submit(ticket)
            left = len(tickets)
            while left:
                item = await tickets[0].inbox.get()
                if isinstance(item, EngineDeadError):
                    raise item
                left -= item[1].done
                yield item
        finally:
            for ticket in tickets:
                self._leave(ticket)

    def _submit(self, ticket: Ticket) -> None:
        if self.dead:
            raise EngineDeadError
        prefix = self._prefix(ticket.prompt)
        ticket.id = self._scheduler.add(len(ticket.prompt), ticket.output_tokens, prefix.group, prefix.tokens)
        self._tickets[ticket.id] = ticket
        self._queued.append(ticket)
        self._wake.set()
        if "dies_at_first_request" in self._faults:
            self.die(_CRASH, exit_code=1)

    def _prefix(self, prompt: Sequence[int]) -> Prefix:
        if "prefix_hits" in self._faults:
            return Prefix(0, int(len(prompt) * self._faults.number("prefix_hits")))
        return self._prefixes.find(prompt) if self._prefixes else Prefix(-1, 0)

    def _leave(self, ticket: Ticket) -> None:
        if self._tickets.pop(ticket.id, None) is not None:
            self._scheduler.abort(ticket.id)
            self._metrics.finished["abort"] += 1

    def reset_prefix_cache(self) -> None:
        """Let no later prompt hit what was cached before."""
        if self._prefixes:
            self._prefixes.clear()

    # --- the loop -----------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Step for ever; ends when the engine dies."""
        due_s = time.monotonic()
        while not self.dead:
            step = self._scheduler.step() if self._tickets else None
            self._note_admitted(due_s)
            if step is None:  # nothing to do, or nothing that fits: wait for a request to come or go
                self._wake.clear()
                await self._wake.wait()
                due_s = time.monotonic()
                continue
            await self._hang_under_load()
            due_s = await self._wait_until(due_s + self._duration_s(step) / self._scale)
            self._publish(step)

    def _note_admitted(self, now_s: float) -> None:
        """Note when a request left the queue: at the begin of the step that first runs it."""
        while self._queued and not self._scheduler.waits(self._queued[0].id):
            ticket = self._queued.popleft()
            ticket.admitted_s = max(now_s, ticket.arrived_s)

    async def _hang_under_load(self) -> None:
        limit = self._faults.number("hang_under_load")
        if limit and len(self._tickets) >= limit:
            await asyncio.Event().wait()

    def _duration_s(self, step: Step) -> float:
        self._steps += 1
        drift = self._faults.number("drifting_speed") * self._simulated_s / 60
        stall_s = self._faults.number("slow_token") if self._steps % _STALL_EVERY_STEPS == 0 else 0.0
        duration_s = step.duration_s * (1 + drift) + stall_s
        self._simulated_s += duration_s
        return duration_s

    async def _wait_until(self, due_s: float) -> float:
        """Sleep until then; return it, or now when the loop is too far behind to catch up."""
        await asyncio.sleep(max(due_s - time.monotonic(), 0))
        lag_s = time.monotonic() - due_s
        if lag_s < _MAX_LAG_S:
            return due_s
        if due_s > self._warned_s + _STATS_EVERY_S:
            self._warned_s = due_s
            self._log.warn(
                "The simulator can't keep up with its clock: lower the time scale or the load.", source="core.py:1"
            )
        return due_s + lag_s

    def _publish(self, step: Step) -> None:
        now_s = time.monotonic()
        self._metrics.iteration.observe(len(step.token_ids) + step.prefill_tokens)
        for request in step.token_ids:
            if ticket := self._tickets.get(request):
                self._give_token(ticket, now_s)
        self._on_step(step)
        self._die_under_load()

    def _give_token(self, ticket: Ticket, now_s: float) -> None:
        ticket.produced += 1
        ticket.held += 1
        self._metrics.generation_tokens += 1
        if ticket.produced == 1:
            ticket.first_s = now_s
            ticket.cached_tokens = self._scheduler.cached_tokens(ticket.id)
            self._metrics.prompt_tokens += len(ticket.prompt)
            self._metrics.ttft.observe(now_s - ticket.arrived_s)
        else:
            self._metrics.itl.observe(now_s - ticket.last_s)
        ticket.last_s = now_s
        if ticket.produced == ticket.output_tokens:
            self._finish(ticket)
        ticket.hand_over()

    def _finish(self, ticket: Ticket) -> None:
        del self._tickets[ticket.id]
        metrics = self._metrics
        metrics.finished[ticket.finish_reason] += 1
        metrics.e2e.observe(ticket.last_s - ticket.arrived_s)
        metrics.request_prompt.observe(len(ticket.prompt))
        metrics.request_generation.observe(ticket.produced)
        admitted_s = ticket.first_s if ticket.admitted_s is None else ticket.admitted_s
        metrics.queue.observe(admitted_s - ticket.arrived_s)
        metrics.prefill.observe(ticket.first_s - admitted_s)
        metrics.decode.observe(ticket.last_s - ticket.first_s)
        if ticket.produced > 1:
            metrics.tpot.observe((ticket.last_s - ticket.first_s) / (ticket.produced - 1))

    # --- the end ------------------------------------------------------------------------------------------------------

    def _die_under_load(self) -> None:
        if (limit := self._faults.number("oom_under_load")) and self._scheduler.running >= limit:
            self.die(_OOM, exit_code=0)
        if (limit := self._faults.number("dies_mid_stream")) and self._metrics.generation_tokens >= limit:
            self.die(logs.CANCELLED, exit_code=0)

    def die(self, cause: str, *, exit_code: int) -> None:
        """Crash: log it as vLLM does, and let every waiting client know."""
        if self.dead:
            return
        self.dead = True
        self._log.engine_death(cause)
        self.abort_all()
        self._on_death(exit_code)

    def abort_all(self) -> None:
        """Give everyone who waits an EngineDeadError, as vLLM does when it dies or is told to stop."""
        for ticket in self._tickets.values():
            ticket.inbox.put_nowait(EngineDeadError())
        self._wake.set()

    # --- what can be seen from outside --------------------------------------------------------------------------------

    def gauges(self) -> Gauges:
        """The scheduler's state now."""
        scheduler = self._scheduler
        return Gauges(
            running=scheduler.running,
            waiting=scheduler.waiting,
            kv_usage_ratio=scheduler.kv_usage_ratio,
            preemptions=scheduler.preemptions_total,
            prefix_queries=scheduler.prefix_queries_tokens_total,
            prefix_hits=scheduler.prefix_hits_tokens_total,
        )

    async def log_stats(self) -> None:
        """Write vLLM's "Engine 000" line every 10 s while there is something to say."""
        metrics = self._metrics
        prompt, generated = 0, 0
        while not self.dead:
            await asyncio.sleep(_STATS_EVERY_S)
            rates = (metrics.prompt_tokens - prompt, metrics.generation_tokens - generated)
            prompt, generated = metrics.prompt_tokens, metrics.generation_tokens
            if any(rates) or self._tickets:
                self._log.write(_stats_line(self.gauges(), *rates), source="loggers.py:335")


def _stats_line(gauges: Gauges, prompt_tokens: int, generated_tokens: int) -> str:
    hit_ratio = gauges.prefix_hits / gauges.prefix_queries if gauges.prefix_queries else 0.0
    preemptions = f"Preemptions: {gauges.preemptions}, " if gauges.preemptions else ""
    return (
        f"Engine 000: Avg prompt throughput: {prompt_tokens / _STATS_EVERY_S:.1f} tokens/s, "
        f"Avg generation throughput: {generated_tokens / _STATS_EVERY_S:.1f} tokens/s, "
        f"Running: {gauges.running} reqs, Waiting: {gauges.waiting} reqs, {preemptions}"
        f"GPU KV cache usage: {gauges.kv_usage_ratio:.1%}, Prefix cache hit rate: {hit_ratio:.1%}"
    )
