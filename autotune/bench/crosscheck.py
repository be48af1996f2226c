"""A level by another tool: started under a keeper, its results read, and both put side by side.

What a tool says differs from ours by definition before it differs by measurement, so each metric is compared twice: as
the tool says it, and computed by our definitions from the tool's own requests, in the same window.
"""

from __future__ import annotations

import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from autotune import measure
from autotune.bench.asked import Asked
from autotune.bench.record import Compared, CrossCheck
from autotune.bench.replay import Replay, replay_of
from autotune.bench.tools import TOOLS, Answered, Tool, tool_named
from autotune.engines.endpoint import EndpointServer
from autotune.engines.logfile import redact
from autotune.engines.process import engine_process
from autotune.errors import EnvironmentFault, InputError
from autotune.records.spec import ObjectiveSpec
from autotune.records.trial import ClientHealth, LevelRecord, Measurement

COMPARED = (
    "output_tok_per_s",
    "request_rps",
    *(f"{base}.{stat}" for base in ("ttft_ms", "tpot_ms", "e2e_ms") for stat in ("mean", "p50", "p99")),
)
TIMEOUT_S = 600.0  # beyond the level itself: these tools import a whole framework, and read tokenizers from afar
_LAST_LINES = 12
_WAIT_S = 0.5
_SEED_APART = 7_919  # the prompts of a cross-check are never those of a level


@dataclass(frozen=True, slots=True, kw_only=True)
class Checker:
    """A tool that is there, and what starts it."""

    tool: Tool
    command: tuple[str, ...]


def checker(name: str, command: str | None) -> Checker:
    """Return the tool called `name`, started by `command` (None: found on PATH). Asked before anything is measured:

    Raises InputError for an unknown tool, EnvironmentFault when it isn't installed.
    """
    if name not in TOOLS:
        raise InputError(f"no tool to cross-check with is called {name!r}", f"there are: {', '.join(TOOLS)}")
    tool = tool_named(name)
    try:
        words = tuple(shlex.split(command)) if command else tool.command
    except ValueError as error:
        raise InputError(
            f"--cross-check-command {command!r} is no command line: {error}", "check its quotes"
        ) from error
    if not words or shutil.which(words[0]) is None:
        raise EnvironmentFault(
            f"{name} can't be started: there is no program {words[0] if words else ''!r}", tool.install
        )
    return Checker(tool=tool, command=words)


def cross_check(
    checking: Checker, asked: Asked, server: EndpointServer, level: LevelRecord, on_phase: Callable[[str], None]
) -> CrossCheck:
    """Have the tool send what `level` sent, and compare. Raises EnvironmentFault when it fails, with its last lines."""
    tool = checking.tool
    replay = replay_of(level, asked.objective, asked.seed + _SEED_APART)
    on_phase(f"{tool.name} sends the same {len(replay.requests)} requests")
    begun = time.monotonic()
    answered = ask_tool(checking, replay, server)
    wall_s = time.monotonic() - begun
    window_s, rows = compare(level, answered, asked)
    return CrossCheck(
        tool=tool.name,
        version=answered.version,
        wall_s=wall_s,
        requests=len(answered.requests),
        failed=sum(request.error is not None for request in answered.requests),
        window_s=window_s,
        compared=rows,
        differences=tool.differences,
    )


def ask_tool(checking: Checker, replay: Replay, server: EndpointServer) -> Answered:
    """Have the tool send `replay`, and return what it found. Raises EnvironmentFault when it fails."""
    with tempfile.TemporaryDirectory(prefix="autotune-cross-check-") as name:
        folder = Path(name)
        argv = [*checking.command, *checking.tool.arguments(replay, server, folder, checking.command)]
        _run(checking.tool, argv, server, folder, limit_s=TIMEOUT_S + 2 * replay.about_s)
        return checking.tool.read(replay, folder)


def _run(tool: Tool, argv: Sequence[str], server: EndpointServer, folder: Path, limit_s: float) -> None:
    log = folder / "tool.log"
    with engine_process(argv, env=_environment(server), log=log) as process:
        deadline = time.monotonic() + limit_s
        while process.exit_code() is None and process.error is None and time.monotonic() < deadline:
            process.wait(_WAIT_S)
        code, error = process.exit_code(), process.error
    if code == 0:
        return
    how = error or ("took too long" if code is None else f"ended with exit code {code}")
    text = log.read_text(errors="replace") if log.exists() else ""
    last = redact("\n".join(text.splitlines()[-_LAST_LINES:]), tuple(filter(None, (server.endpoint.api_key,))))
    raise EnvironmentFault(f"{tool.name} {how}; its last lines:\n{last}", f"what was started: {shlex.join(argv)}")


def _environment(server: EndpointServer) -> Mapping[str, str]:
    """Both tools read the key from OPENAI_API_KEY: it must not stand in a command line."""
    key = server.endpoint.api_key
    return {**os.environ, **({"OPENAI_API_KEY": key} if key else {})}


# --- side by side -----------------------------------------------------------------------------------------------------


def compare(level: LevelRecord, answered: Answered, asked: Asked) -> tuple[tuple[float, float], tuple[Compared, ...]]:
    """Return the window that the tool's requests were measured in, and every metric that both have."""
    theirs = level_of(level, answered)
    ours, found = (measured(each, asked.objective, asked.gpus) for each in (level, theirs))
    wanted = dict.fromkeys((*COMPARED, *(slo.metric for slo in asked.objective.slos)))
    rows = [
        Compared(
            metric=metric,
            ours=ours.values[metric].value,
            said=answered.said.get(metric),
            measured=found.values[metric].value if metric in found.values else None,
        )
        for metric in wanted
        if metric in ours.values and (metric in answered.said or metric in found.values)
    ]
    return theirs.window_s, tuple(rows)


def level_of(level: LevelRecord, answered: Answered) -> LevelRecord:
    """Return the tool's requests as a level with the window of ours, cut where a closed loop has sent its last request:
    from then on it is no longer full."""
    begin, end = level.window_s
    if level.concurrency is not None and answered.requests:
        end = max(begin, min(end, max(request.sent_s for request in answered.requests)))
    requests = tuple(replace(request, warmup=request.start_s < begin) for request in answered.requests)
    return replace(
        level,
        window_s=(begin, end),
        requests=requests,
        client=ClientHealth(send_lag_p99_ms=None, cpu_ratio=None),
        stopped=None,
        telemetry=None,
    )


def measured(level: LevelRecord, objective: ObjectiveSpec, gpus: int) -> Measurement:
    """Return a level by our definitions."""
    return measure.measure(level, metrics=COMPARED, slos=objective.slos, gpus=gpus, confidence=objective.confidence)
