"""What the tuner knows of a level while the load client runs it: the plan on its way out, the records as they come."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from autotune.errors import EnvironmentFault
from autotune.load.body import renderer
from autotune.load.exchange import unpack
from autotune.load.frames import Frame, Kind, pack
from autotune.load.progress import LevelPhase, Progress
from autotune.load.response import parse
from autotune.records.trial import ClientHealth, Endpoint, LevelPlan, LevelRecord, RequestRecord

_RECENT_S = 5.0


class _Asked(NamedTuple):
    """What a record repeats of its request."""

    at_s: float | None
    prompt_tokens: int | None
    output_tokens: int


class Gathering:
    """One level: `frames` go to the client, `take` reads what it answers; `end` is set once it has finished.

    `stopped` is the reason that the caller stops the level for.
    """

    def __init__(self, endpoint: Endpoint, plan: LevelPlan) -> None:
        self._endpoint = endpoint
        self._plan = plan
        self._render = renderer(endpoint, secrets.token_hex(4))
        self._asked: dict[int, _Asked] = {}
        self._records: list[RequestRecord] = []
        self._lags_s: list[float] = []
        self._errors = 0
        self._tokens = 0
        self._report: Mapping[str, Any] = {}
        self.end: Mapping[str, Any] | None = None
        self.stopped: str | None = None

    @property
    def begun(self) -> bool:
        """The client has reported at least once."""
        return bool(self._report)

    def frames(self) -> Iterator[bytes]:
        """The level as frames for the client; requests are made as they are taken."""
        plan = self._plan
        yield pack(
            Kind.SETUP,
            {
                "host": self._endpoint.host,
                "port": self._endpoint.port,
                "tls": self._endpoint.tls,
                "concurrency": plan.concurrency,
                "end_s": plan.warmup_s + plan.duration_s,
                "drain_s": plan.drain_s,
            },
        )
        for request in plan.requests:
            self._asked[request.index] = _Asked(request.at_s, request.prompt_tokens, request.output_tokens)
            yield pack(Kind.REQUEST, {"index": request.index, "at_s": request.at_s}, self._render(request))
        yield pack(Kind.END, {})

    def take(self, frame: Frame) -> RequestRecord | None:
        """Read a frame of the client; returns the record if it brought one."""
        match frame.kind:
            case Kind.PROGRESS:
                self._report = frame.meta
            case Kind.FINISHED:
                self.end = frame.meta
            case Kind.RECORD:
                return self._keep(frame)
        return None

    def progress(self) -> Progress:
        """How the level stands by the client's last report and the records since."""
        report = self._report
        elapsed_s = report["elapsed_s"]
        return Progress(
            elapsed_s=elapsed_s,
            phase=self._phase(elapsed_s),
            sent=len(self._records) + report["in_flight"],
            done=len(self._records) - self._errors,
            errors=self._errors,
            in_flight=report["in_flight"],
            waiting_first_token=report["waiting_first_token"],
            oldest_wait_s=report["oldest_wait_s"],
            tokens=self._tokens + report["chunks_in_flight"],
            completions_5s=self._completions_since(elapsed_s - _RECENT_S),
        )

    def level(self) -> LevelRecord:
        """The whole level. Raises EnvironmentFault when someone else than the caller ended the client."""
        assert self.end is not None  # noqa: S101 - callers wait for it
        if self.end["stopped"] and self.stopped is None:
            raise EnvironmentFault("another program ended the load client (SIGTERM)", "run the trial again")
        plan = self._plan
        end_s = plan.warmup_s + plan.duration_s
        # An open loop's plan covers its whole window, though its last request may have ended before.
        if plan.concurrency is not None or self.end["stopped"]:
            end_s = min(end_s, self.end["end_s"])
        return LevelRecord(
            plan_seed=plan.seed,
            offered_rps=plan.offered_rps,
            concurrency=plan.concurrency,
            window_s=(min(plan.warmup_s, end_s), end_s),
            requests=tuple(sorted(self._records, key=lambda record: record.index)),
            client=ClientHealth(send_lag_p99_ms=_p99_ms(self._lags_s), cpu_ratio=self.end["cpu_ratio"]),
            stopped=self.stopped if self.end["stopped"] else None,
        )

    def _keep(self, frame: Frame) -> RequestRecord:
        meta = frame.meta
        asked = self._asked.pop(meta["index"])
        parsed = parse(unpack(meta, frame.payload))
        start_s = meta["sent_s"] if asked.at_s is None else asked.at_s
        record = RequestRecord(
            index=meta["index"],
            scheduled_s=asked.at_s,
            sent_s=meta["sent_s"],
            chunk_s=tuple(parsed.chunk_s),
            done_s=meta["done_s"],
            status=meta["status"],
            prompt_tokens=parsed.prompt_tokens,
            output_tokens=parsed.output_tokens,
            cached_tokens=parsed.cached_tokens,
            asked_prompt_tokens=asked.prompt_tokens,
            asked_output_tokens=asked.output_tokens,
            finish_reason=parsed.finish_reason,
            error=parsed.error,
            warmup=start_s < self._plan.warmup_s,
        )
        self._records.append(record)
        self._lags_s.append(meta["sent_s"] - meta["due_s"])
        self._errors += record.error is not None
        self._tokens += record.output_tokens or len(record.chunk_s)
        return record

    def _phase(self, elapsed_s: float) -> LevelPhase:
        if elapsed_s < self._plan.warmup_s:
            return LevelPhase.WARMUP
        return LevelPhase.WINDOW if elapsed_s < self._plan.warmup_s + self._plan.duration_s else LevelPhase.DRAIN

    def _completions_since(self, since_s: float) -> int:
        count = 0
        for record in reversed(self._records):  # they come in the order in which they ended
            if record.done_s is None or record.done_s < since_s:
                break
            count += record.error is None
        return count


def _p99_ms(lags_s: list[float]) -> float | None:
    """The empirical 99th percentile (nearest rank), in ms; None without requests."""
    return 1000 * sorted(lags_s)[math.ceil(0.99 * len(lags_s)) - 1] if lags_s else None
