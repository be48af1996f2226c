"""A launched engine of the benchmark in virtual time: levels in, records out, overloads stopped as on a real server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from autotune import slo
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import ClientHealth, LevelPlan, LevelRecord, RequestRecord
from benchmarks.capacity.engine import Floats, Ints, Physics, Served, serve

ASK_EVERY_S = 0.5
DRAIN_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Follows `slo.Progress`."""

    elapsed_s: float
    phase: str
    waiting_first_token: int
    oldest_wait_s: float
    completions_5s: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Requests:
    """Of one level: when they are sent, prompts and answers in tokens."""

    at_s: Floats
    prompt: Ints
    output: Ints


@dataclass(slots=True)
class Rig:
    """One launch; `spent_s` is its time under load so far."""

    physics: Physics
    objective: ObjectiveSpec
    seed: int
    spent_s: float = 0.0
    levels: int = 0

    def run(self, plan: LevelPlan) -> LevelRecord:
        """A level as planned."""
        planned = [plan.requests[i] for i in range(len(plan.requests))]
        requests = Requests(
            at_s=np.array([r.at_s or 0.0 for r in planned]),
            prompt=np.array([r.prompt_tokens or 1 for r in planned]),
            output=np.array([r.output_tokens for r in planned]),
        )
        window_s = plan.warmup_s, plan.warmup_s + plan.duration_s
        return self.level(
            requests, rate=plan.offered_rps, clients=plan.concurrency, window_s=window_s, drain_s=plan.drain_s
        )

    def level(
        self,
        requests: Requests,
        *,
        window_s: tuple[float, float],
        rate: float | None = None,
        clients: int | None = None,
        drain_s: float = DRAIN_S,
    ) -> LevelRecord:
        """The requests given in an open loop at `rate`, or one after another by so many `clients`."""
        self.levels += 1
        seed, end_s = self.seed * 1000 + self.levels, window_s[1] + drain_s
        served = serve(
            self.physics,
            requests.at_s,
            requests.prompt,
            requests.output,
            seed=seed,
            end_s=end_s,
            clients=clients or 0,
            last_s=window_s[1],
        )
        records = _records(requests, served, window_s[0], end_s)
        planned = None if rate is None else round(rate * (window_s[1] - window_s[0]))
        stop_s, why = _stopped(self.objective, served, records, planned, window_s)
        if why is not None:
            records, window_s = _records(requests, served, window_s[0], stop_s), (window_s[0], stop_s)
        self.spent_s += max((r.done_s or r.sent_s for r in records), default=window_s[1])
        return LevelRecord(
            plan_seed=self.levels,
            offered_rps=rate,
            concurrency=clients,
            window_s=window_s,
            requests=tuple(records),
            client=ClientHealth(send_lag_p99_ms=0.0, cpu_ratio=0.0),
            stopped=why,
        )


def _records(requests: Requests, served: Served, warmup_s: float, end_s: float) -> list[RequestRecord]:
    """What a client has seen by `end_s`."""
    begun = len(served.sent_s)
    prompts, outputs = requests.prompt[:begun], requests.output[:begun]
    columns = (a.tolist() for a in (served.sent_s, prompts, outputs, served.first_s, served.last_s))
    return [
        RequestRecord(
            index=index,
            scheduled_s=at_s,
            sent_s=at_s,
            chunk_s=(first_s, last_s) if last_s <= end_s else (first_s,) if first_s <= end_s else (),
            done_s=last_s if last_s <= end_s else end_s,  # noqa: FURB136 - NaN: never
            status=200 if first_s <= end_s else None,
            prompt_tokens=prompt if last_s <= end_s else None,
            output_tokens=output if last_s <= end_s else None,
            asked_prompt_tokens=prompt,
            asked_output_tokens=output,
            error=None if last_s <= end_s else "cut",
            warmup=at_s < warmup_s,
        )
        for index, (at_s, prompt, output, first_s, last_s) in enumerate(zip(*columns, strict=True))
        if at_s <= end_s
    ]


def _stopped(
    objective: ObjectiveSpec,
    served: Served,
    records: Sequence[RequestRecord],
    planned: int | None,
    window_s: tuple[float, float],
) -> tuple[float, str | None]:
    """When the product's guard would have stopped the level, and why; None: never."""
    guard = slo.overload_guard(objective, planned)
    ended = sorted((r for r in records if r.error is None), key=lambda r: r.done_s or 0.0)
    done_s = np.array([r.done_s for r in ended])
    told = 0
    for now in np.arange(ASK_EVERY_S, window_s[1], ASK_EVERY_S):
        upto = int(np.searchsorted(done_s, now))
        for record in ended[told:upto]:
            guard.record(record)
        told = upto
        waits = served.sent_s[(served.sent_s <= now) & ~(served.first_s <= now)]
        progress = Progress(
            elapsed_s=float(now),
            phase="warmup" if now < window_s[0] else "window",
            waiting_first_token=len(waits),
            oldest_wait_s=float(now - waits.min()) if len(waits) else 0.0,
            completions_5s=upto - int(np.searchsorted(done_s, now - 5.0)),
        )
        if (why := guard(progress)) is not None:
            return float(now), why
    return window_s[1], None
