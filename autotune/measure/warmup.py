"""Where the window of a level begins: after the least warm-up, and once the engine has filled up."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from autotune.records.trial import LevelRecord, RequestRecord

E2E_TIMES = 2.0
SHARE_MAX = 0.5
"""At most this share of the planned window is given up."""


def warm_from_s(requests: Iterable[RequestRecord], planned_s: tuple[float, float]) -> float:
    """Return when the window begins: at `planned_s[0]`, or after twice the mean E2E of the warm-up's answers if that is
    later, but no later than the middle of the planned window. Seconds on the level's clock.

    By then the answers of the empty engine, and those that waited for kernels to compile, have left it. Rules that look
    for the end of the transient in the latencies (MSER-5) cut off the bursts that happen to come early, and with them
    half of the violations.
    """
    begin, end = planned_s
    return min(max(begin, E2E_TIMES * _mean_e2e_s(requests)), begin + SHARE_MAX * (end - begin))


def warmed_up(level: LevelRecord, planned_s: tuple[float, float]) -> LevelRecord:
    """Return the level with its window begun by evidence (`warm_from_s`), never after its end; with a note where twice
    the mean E2E would have taken too much of it.

    A level that ran out of requests has no more window than it used: half of that stays,
    however slow its first answers.
    """
    if level.stopped is None:
        planned_s = planned_s[0], max(planned_s[0], min(planned_s[1], level.window_s[1]))
    begin = warm_from_s(level.requests, planned_s)
    notes = level.notes
    if begin < (wanted_s := E2E_TIMES * _mean_e2e_s(level.requests)):
        notes = (
            *notes,
            f"warm-up ended after {begin:.3g} s, twice the mean E2E is {wanted_s:.3g} s: lengthen the level",
        )
    return replace(level, window_s=(min(begin, level.window_s[1]), level.window_s[1]), notes=notes)


def _mean_e2e_s(requests: Iterable[RequestRecord]) -> float:
    """Of the answers to warm-up requests; 0 where there is none."""
    times_ms = [r.e2e_ms for r in requests if r.warmup and r.error is None and r.e2e_ms is not None]
    return sum(times_ms) / len(times_ms) / 1e3 if times_ms else 0.0
