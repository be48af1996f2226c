"""`autotune bench` from its options to its exit code: what can be wrong is told before the server is loaded."""

from __future__ import annotations

import os
import secrets
import signal
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from rich.console import Console

from autotune.bench.asked import Asked, Load, objective_of
from autotune.bench.crosscheck import Checker, checker, cross_check
from autotune.bench.export import Exporter, exporter_to
from autotune.bench.record import BenchRecord
from autotune.bench.replay import check_replays
from autotune.bench.run import Measured, run_bench
from autotune.bench.show import render
from autotune.bench.view import LiveView
from autotune.bench.words import opening
from autotune.engines.endpoint import EndpointServer, address, connect
from autotune.errors import EnvironmentFault, ExitCode, InputError, Interrupted
from autotune.interrupts import SIGNALS
from autotune.records.trial import LevelRecord
from autotune.trial.store import to_json, write_atomically

_SEEDS = 1_000_000  # short enough to type again


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The command line. `api_key_env` names the variable with the key: the key itself is never an option. `seed` None:
    a new one, since a server that was measured before has the prompts of that seed in its prefix cache."""

    url: str
    objective: str | None = None
    load: Load = field(default_factory=Load)
    model: str | None = None
    gpus: int = 1
    seed: int | None = None
    api_key_env: str | None = None
    cross_check: str | None = None
    cross_check_command: str | None = None
    export: Path | None = None
    output: Path | None = None


def bench_url(options: Options, *, as_json: bool = False, console: Console | None = None) -> ExitCode:
    """Measure, print the result on stdout, and return what the command ends with.

    Raises InputError, EnvironmentFault and, when nothing was measured yet, Interrupted.
    """
    asked = Asked(
        objective=objective_of(options.objective, options.load),
        seed=secrets.randbelow(_SEEDS) if options.seed is None else options.seed,
        gpus=options.gpus,
        early=not (options.load.lasts or options.cross_check),
        aa=options.load.aa is not None,
    )
    exporters = _exporters(options)
    checking = _checker(options, asked)
    try:
        server = connect(options.url, model=options.model, api_key=_api_key(options.api_key_env))
        measured, fault = _measured(asked, server, checking)
    except KeyboardInterrupt:
        raise Interrupted("interrupted before anything was measured") from None
    for export in exporters:
        export(measured.levels)
    if options.output is not None:
        write_atomically(options.output / "bench.json", to_json(measured.record))
    _print(measured.record, as_json=as_json, console=console or Console())
    if fault is not None:
        raise fault
    return measured.record.exit_code


def _checker(options: Options, asked: Asked) -> Checker | None:
    if options.cross_check is None:
        return None
    check_replays(asked.objective)
    return checker(options.cross_check, options.cross_check_command)


def _exporters(options: Options) -> list[Exporter]:
    paths = [options.export] if options.export is not None else []
    if options.output is not None:
        try:
            options.output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"{options.output} can't be made: {error.strerror}", "give another folder") from error
        paths.append(options.output / "requests.jsonl")
    return [exporter_to(path) for path in paths]


def _api_key(variable: str | None) -> str | None:
    if variable is None:
        return None
    if not os.environ.get(variable):
        raise InputError(f"the environment variable {variable!r} is not set, or empty", "export it first")
    return os.environ[variable]


def _measured(
    asked: Asked, server: EndpointServer, checking: Checker | None
) -> tuple[Measured, EnvironmentFault | None]:
    """What was measured, and why the cross-check failed: that takes nothing from the measurement."""
    what = opening(address(server.endpoint), server.card.name, server.version, asked.objective, asked.seed)
    with LiveView(asked.objective.load, what) as view, _interrupt() as interrupt:
        measured = run_bench(asked, server, view, interrupt.asked)
        record, level = measured.record, _last(measured.levels)
        if checking is None or level is None or record.failure is not None or record.interrupted:
            return measured, None
        interrupt.immediate()
        try:
            record = replace(record, cross_check=cross_check(checking, asked, server, level, view.phase))
        except EnvironmentFault as fault:
            return measured, fault
        except KeyboardInterrupt:
            record = replace(record, interrupted=True)
        return replace(measured, record=record), None


def _last(levels: Sequence[LevelRecord]) -> LevelRecord | None:
    return levels[-1] if levels and levels[-1].requests else None


class _Interrupt:
    """Ctrl-C while a level runs ends the level; before that, after it and the second time it ends the program."""

    def __init__(self) -> None:
        self._watching = self._asked = False

    def asked(self) -> bool:
        """Whether the level is to end. Whoever asks will ask again: from now on the first Ctrl-C is theirs."""
        self._watching = True
        return self._asked

    def immediate(self) -> None:
        """Nobody asks any more."""
        self._watching = False

    def heed(self, _signal: int, _frame: object) -> None:
        """The handler of the signals."""
        if not self._watching or self._asked:
            raise KeyboardInterrupt
        self._asked = True


@contextmanager
def _interrupt() -> Iterator[_Interrupt]:
    interrupt = _Interrupt()
    kept = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in kept.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, interrupt.heed)
    try:
        yield interrupt
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)


def _print(record: BenchRecord, *, as_json: bool, console: Console) -> None:
    if as_json:
        console.file.write(to_json(record).decode())
    else:
        console.print(render(record))
