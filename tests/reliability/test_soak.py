"""A short soak: random faults and kills of the tuner, and nothing is left behind, lost, repeated or piles up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.soak.soak import Life, Soak, Tally

pytestmark = pytest.mark.integration
TRIALS = 6
KILLS = 3


def test_trials_with_faults_and_kills_leave_lose_and_repeat_nothing(tmp_path: Path) -> None:
    told: list[str] = []
    soak = Soak(tmp_path, trials=TRIALS, kill_every_s=6.0, kills_at_most=KILLS, tell=told.append)
    tally = soak.run()
    assert tally.finished, told
    assert 0 < tally.kills <= KILLS
    assert (tally.orphans, tally.lost, soak.repeated()) == (0, [], 0), told
    assert sum(count for outcome, count in soak.outcomes().items() if outcome != "ruled_out") == TRIALS
    again = Soak(tmp_path, trials=TRIALS, kill_every_s=6.0, kills_at_most=KILLS, tell=told.append)
    assert again.tally == tally
    assert again.run().finished


def test_growth_is_counted_from_where_a_tuner_has_settled() -> None:
    growing = Life(files=[10, 20, 30, 30, 31, 33], memory_mib=[1.0, 50.0, 60.0, 60.0, 62.0, 64.0])
    tally = Tally(lives=[Life(files=[1]), growing])
    assert (tally.files_grown, tally.mib_per_trial) == (3, 2.0)
