"""What the tuner knows of a level while the load client runs it: the plan on its way out, the records as they come."""

from __future__ import annotations

import math
import secrets
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from autotune.errors import EnvironmentFault
from autotune.load.body import renderer
from autotune.load.dealing import Deal, slots
from autotune.load.dialect import Dialect
from autotune.load.exchange import unpack
from autotune.load.frames import Frame, Kind, pack
from autotune.load.progress import LevelPhase, Progress
from autotune.load.response import parse
from autotune.records.trial import ClientHealth, Endpoint, LevelPlan, LevelRecord, RequestPlan, RequestRecord

_RECENT_S = 5.0


class _Asked(NamedTuple):
    """What a record repeats of its request."""

    at_s: float | None
    turn: bool  # after another one: its time is told by the client
    prompt_tokens: int | None
    output_tokens: int
    shared_tokens: int | None


class Gathering:
    """One level: `frames` go to the clients, `take` reads what they answer; `finished` once all of them have.

    `stopped` is the reason that the caller stops the level for.
    """

    def __init__(self, endpoint: Endpoint, plan: LevelPlan, dialect: Dialect, clients: int) -> None:
        self._endpoint = endpoint
        self._plan = plan
        self._dialect = dialect
        self._render = renderer(endpoint, secrets.token_hex(4), dialect)
        self._deal = Deal(plan, clients)
        self._slots = slots(plan.concurrency, clients)
        self._asked: dict[int, _Asked] = {}
        self._records: list[RequestRecord] = []
        self._lags_s: list[float] = []
        self._errors = 0
        self._tokens = 0
        self._reports: dict[int, Mapping[str, Any]] = {}
        self._ends: dict[int, Mapping[str, Any]] = {}
        self.stopped: str | None = None

    @property
    def begun(self) -> bool:
        """Every client has reported at least once, or had nothing to do."""
        return bool(self._reports) and len(self._reports.keys() | self._ends.keys()) == len(self._slots)

    @property
    def finished(self) -> bool:
        """Every client has handed over its last record."""
        return len(self._ends) == len(self._slots)

    def frames(self, client: int) -> Iterator[bytes]:
        """The share of one client as frames; requests are made as they are taken."""
        plan = self._plan
        yield pack(
            Kind.SETUP,
            {
                "host": self._endpoint.host,
                "port": self._endpoint.port,
                "tls": self._endpoint.tls,
                "concurrency": self._slots[client],
                "end_s": plan.warmup_s + plan.duration_s,
                "drain_s": plan.drain_s,
            },
        )
        for dealt in self._deal.hand(client):
            request = dealt.request
            self._asked[request.index] = _Asked(
                at_s=request.at_s,
                turn=request.after is not None,
                prompt_tokens=request.prompt_tokens,
                output_tokens=request.output_tokens,
                shared_tokens=_shared_tokens(request),
            )
            meta = {"index": request.index, "at_s": request.at_s, "think_s": request.think_s, "more": dealt.more}
            yield pack(Kind.REQUEST, meta, self._render(request))
        yield pack(Kind.END, {})

    def take(self, client: int, frame: Frame) -> RequestRecord | None:
        """Read a frame of a client; returns the record if it brought one.

        Raises EnvironmentFault when someone else than the caller ended the client.
        """
        match frame.kind:
            case Kind.PROGRESS:
                self._reports[client] = frame.meta
            case Kind.FINISHED:
                if frame.meta["stopped"] and self.stopped is None:
                    raise EnvironmentFault("another program ended the load client (SIGTERM)", "run the trial again")
                self._ends[client] = frame.meta
            case Kind.RECORD:
                return self._keep(frame)
        return None

    def progress(self) -> Progress:
        """How the level stands by the clients' last reports and the records since."""
        reports = [report for client, report in self._reports.items() if client not in self._ends]
        elapsed_s = max(report["elapsed_s"] for report in self._reports.values())
        in_flight = sum(report["in_flight"] for report in reports)
        return Progress(
            elapsed_s=elapsed_s,
            phase=self._phase(elapsed_s),
            sent=len(self._records) + in_flight,
            done=len(self._records) - self._errors,
            errors=self._errors,
            in_flight=in_flight,
            waiting_first_token=sum(report["waiting_first_token"] for report in reports),
            oldest_wait_s=max((report["oldest_wait_s"] for report in reports), default=0.0),
            tokens=self._tokens + sum(report["chunks_in_flight"] for report in reports),
            completions_5s=self._completions_since(elapsed_s - _RECENT_S),
        )

    def level(self) -> LevelRecord:
        """The whole level, once it is `finished`."""
        plan = self._plan
        ends = self._ends.values()
        stopped = any(end["stopped"] for end in ends)
        end_s = plan.warmup_s + plan.duration_s
        # An open loop's plan covers its whole window, though its last request may have ended before.
        if plan.concurrency is not None or stopped:
            end_s = min(end_s, max(end["end_s"] for end in ends))
        return LevelRecord(
            plan_seed=plan.seed,
            offered_rps=plan.offered_rps,
            concurrency=plan.concurrency,
            window_s=(min(plan.warmup_s, end_s), end_s),
            requests=tuple(sorted(self._records, key=lambda record: record.index)),
            client=ClientHealth(
                send_lag_p99_ms=_p99_ms(self._lags_s),
                cpu_ratio=max((end["cpu_ratio"] for end in ends if end["cpu_ratio"] is not None), default=None),
            ),
            stopped=self.stopped if stopped else None,
            notes=plan.notes + self._dialect.notes,
        )

    def _keep(self, frame: Frame) -> RequestRecord:
        meta = frame.meta
        asked = self._asked.pop(meta["index"])
        parsed = parse(unpack(meta, frame.payload))
        scheduled_s = meta["due_s"] if asked.turn else asked.at_s
        start_s = meta["sent_s"] if scheduled_s is None else scheduled_s
        counted = parsed.output_tokens if self._dialect.usage else len(parsed.chunk_s)
        record = RequestRecord(
            index=meta["index"],
            scheduled_s=scheduled_s,
            sent_s=meta["sent_s"],
            chunk_s=tuple(parsed.chunk_s),
            chunk_tokens=tuple(parsed.chunk_tokens),
            done_s=meta["done_s"],
            status=meta["status"],
            prompt_tokens=parsed.prompt_tokens,
            output_tokens=counted,
            cached_tokens=parsed.cached_tokens,
            shared_tokens=asked.shared_tokens,
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


def _shared_tokens(request: RequestPlan) -> int | None:
    """Of a prompt of token ids, what the workload shares; a text's beginning may be any other's (a chat template)."""
    return None if request.prompt_ids is None else request.prefix_tokens


def _p99_ms(lags_s: list[float]) -> float | None:
    """The empirical 99th percentile (nearest rank), in ms; None without requests."""
    return 1000 * sorted(lags_s)[math.ceil(0.99 * len(lags_s)) - 1] if lags_s else None
