"""A scripted engine at the seam `engines.base.Engine`: what happens to a candidate is a function of its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from autotune.engines.base import LaunchError, Preflight, Refusal, Resolved, Server
from autotune.errors import Problem
from autotune.records.spec import Args, EngineKind, StudySpec
from autotune.records.trial import (
    Candidate,
    Cleanup,
    ClientHealth,
    Endpoint,
    Failure,
    Fault,
    LevelPlan,
    LevelRecord,
    Outcome,
    Phase,
    RequestRecord,
)

Script = Callable[[Candidate, int], "Failure | float | BaseException"]
"""(candidate, launches so far) -> a failure at launch, an exception to raise under load, or the TTFT in ms; a negative
TTFT is served by a load client that can't keep up."""


def failure(outcome: Outcome, fault: Fault = Fault.CANDIDATE) -> Failure:
    """A failure at launch."""
    return Failure(outcome=outcome, fault=fault, phase=Phase.LAUNCH, cause=f"scripted {outcome.value}", remedy="none")


@dataclass(slots=True)
class ScriptedServer:
    """Answers every request after its TTFT, 10 ms a token; faster is more throughput."""

    result: float | BaseException
    endpoint: Endpoint = field(default_factory=lambda: Endpoint(host="127.0.0.1", port=1, model_name="m"))
    startup_s: float = 1.5
    argv: tuple[str, ...] = ("scripted",)
    vocab_size: int | None = 1000
    max_model_len: int | None = None
    cleanup: Cleanup | None = None

    def resolved(self) -> Mapping[str, Any]:
        return {"block_size": 16}

    def warnings(self) -> tuple[str, ...]:
        return ("WARNING scripted",)

    def metrics(self) -> Mapping[str, float]:
        return {}

    def exit_code(self) -> int | None:
        return None

    def log_tail(self, lines: int) -> tuple[str, ...]:
        return ("last line",)[:lines]

    def failure(self, phase: Phase) -> Failure | None:
        return None

    def run_level(self, plan: LevelPlan) -> LevelRecord:
        if isinstance(self.result, BaseException):
            raise self.result
        ttft_s, requests, start_s = abs(self.result) / 1e3, [], 0.0
        for index in range(200):
            first_s = start_s + ttft_s
            chunks = tuple(first_s + 0.01 * token for token in range(plan.requests[index].output_tokens))
            requests.append(
                RequestRecord(
                    index=index,
                    scheduled_s=None,
                    sent_s=start_s,
                    chunk_s=chunks,
                    done_s=chunks[-1],
                    status=200,
                    prompt_tokens=plan.requests[index].prompt_tokens,
                    output_tokens=plan.requests[index].output_tokens,
                    asked_prompt_tokens=plan.requests[index].prompt_tokens,
                    asked_output_tokens=plan.requests[index].output_tokens,
                    finish_reason="length",
                    warmup=False,
                )
            )
            start_s = chunks[-1]
        return LevelRecord(
            plan_seed=plan.seed,
            offered_rps=plan.offered_rps,
            concurrency=1,
            window_s=(0.0, start_s),
            requests=tuple(requests),
            client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=0.01 if self.result > 0 else 0.99),
        )


Check = Callable[[Args], "Failure | None"]
"""What the engine's own check says of arguments; None accepts them."""


@dataclass(slots=True)
class ScriptedPreflight:
    check: Check

    def ask(self, args: Args) -> Refusal | Resolved | None:
        refused = self.check(args)
        return Resolved(settings={}) if refused is None else Refusal(failure=refused)


class ScriptedEngine:
    """Counts its launches; `open_servers` is 0 when every launch was closed."""

    kind = EngineKind.SIMULATED
    simulated = False

    def __init__(self, script: Script, check: Check | None = None) -> None:
        self._script = script
        self._check = check
        self.launched: list[Candidate] = []
        self.open_servers = 0

    def problems(self, spec: StudySpec) -> Iterable[Problem]:
        return ()

    @contextmanager
    def launch(
        self, candidate: Candidate, *, trial_dir: Path, gpus: Sequence[str], on_phase: Callable[[str], None]
    ) -> Iterator[Server]:
        on_phase("starting")
        self.launched.append(candidate)
        result = self._script(candidate, len(self.launched))
        (trial_dir / "engine.log").write_text("scripted\n")
        if isinstance(result, Failure):
            raise LaunchError(result, log_tail=("last line",), argv=("scripted",))
        server = ScriptedServer(result)
        self.open_servers += 1
        try:
            yield server
        finally:
            self.open_servers -= 1
            server.cleanup = Cleanup(left_processes=0, port_free=True)

    def preflight(
        self, *, gpus: Sequence[str], tell: Callable[[str], None]
    ) -> AbstractContextManager[Preflight | None]:
        return nullcontext(None if self._check is None else ScriptedPreflight(self._check))

    def diagnose(self, exit_code: int | None, phase: Phase, log_text: str) -> Failure:
        return failure(Outcome.UNKNOWN, Fault.ENVIRONMENT)

    def versions(self) -> Mapping[str, str | None]:
        return {"engine": "scripted 1"}

    def defaults(self) -> Args:
        return {"max_num_batched_tokens": 512}

    def read_incumbent(self, text: str) -> Args:
        return {}


class ListView:
    """A view that remembers."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def phase(self, number: int, candidate: Candidate, text: str) -> None:
        self.lines.append(f"{number} {text}")

    def finished(self, record: Any) -> None:
        self.lines.append(f"{record.number} finished {record.outcome.value}")

    def message(self, text: str) -> None:
        self.lines.append(text)
