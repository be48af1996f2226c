from __future__ import annotations

from pathlib import Path

import pytest
from rich.console import Console

from autotune.records.trial import Outcome
from autotune.report.table import NEVER_SHORTENED, excerpt, trial_table
from autotune.report.view import RunView, make_view
from autotune.report.words import differing
from tests.runs import dozen, params, study, summary, trial


def view() -> RunView:
    return make_view(Path("runs/x"), study(), dozen(), summary())


def rendered(view: RunView, width: int = 80, max_differences: int = NEVER_SHORTENED) -> str:
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        console.print(trial_table(view, max_differences=max_differences))
    return capture.get()


@pytest.mark.parametrize("width", [80, 120, 200])
def test_every_name_and_value_is_whole_on_a_line(width: int) -> None:
    text = rendered(view(), width)
    assert max(map(len, text.splitlines())) <= width
    whole = {pair for t in view().trials if t.number not in {0, 4} for pair in differing(t, view().reference)}
    lines = " ".join(text.split()).split()
    assert whole <= set(lines)


def test_best_and_reference_are_marked() -> None:
    lines = rendered(view()).splitlines()
    assert [line for line in lines if "★" in line] == [line for line in lines if line.strip().startswith("★ 5")]
    assert any("(reference)" in line and line.split()[0] == "0" for line in lines)


def test_the_verdict_stands_in_words() -> None:
    text = rendered(view())
    assert all(
        words in text for words in ("meets SLO", "misses SLO", "no memory", "unsure", "ruled out", "interrupted")
    )


def test_a_row_can_be_kept_short() -> None:
    text = rendered(view(), max_differences=1)
    assert "+2\u00a0more" in text
    assert "max_num_batched_tokens=4096" not in text


def test_long_studies_keep_best_and_reference_in_sight() -> None:
    trials = [*dozen(), *(trial(n, Outcome.OOM_LOAD, params(8, 512)) for n in range(12, 1000))]
    shown = excerpt(make_view(Path(), study(), trials, summary()), last=12)
    assert [t.number for t in shown] == [0, 5, *range(988, 1000)]
