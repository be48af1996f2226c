"""What a run of scripts/gpu_check.sh showed: `gpu_check_result.py RUN`, a line for each check, `yes` or `no` first."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from autotune.records.trial import TrialRecord
from autotune.trial.applied import applied
from autotune.trial.store import RunDirectory

TRIALS = 3


def checks(records: list[TrialRecord]) -> Iterator[tuple[bool, str]]:
    """Yield what must hold, and what was seen."""
    yield len(records) == TRIALS, f"{TRIALS} trials: {', '.join(record.outcome.value for record in records)}"
    yield any(record.outcome.measured for record in records), "a trial was measured"
    yield not any(record.simulated for record in records), "the engine is a real one"
    for record in records:
        yield from _trial(record)


def _trial(record: TrialRecord) -> Iterator[tuple[bool, str]]:
    name = f"trial {record.number}"
    cause = record.failure.cause if record.failure else "no failure"
    yield record.outcome.measured, f"{name} was measured: {record.outcome.value}, {cause}"
    left = record.cleanup
    yield left is not None and left.left_processes == 0 and left.port_free, f"{name} left nothing behind: {left}"
    if not record.outcome.measured:
        return
    yield bool(record.resolved), f"{name} told its settings: {dict(record.resolved)}"
    found = applied(record.args, record.resolved)
    yield not found.differing, f"{name} ran with what was asked: {dict(found.differing) or list(found.confirmed)}"
    counters = record.measurements[-1].counters if record.measurements else {}
    told = sorted(key for key in counters if key.startswith("server_"))
    yield bool(told), f"{name} had counters: {', '.join(told)}"
    yield True, f"{name} started in {record.startup_s:.0f} s, warned {len(record.warnings)} times: {record.warnings}"


def main() -> None:
    """Print every check."""
    for holds, seen in checks(list(RunDirectory(path=Path(sys.argv[1])).trials())):
        print("yes" if holds else "no", seen)


if __name__ == "__main__":
    main()
