from __future__ import annotations

import io
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from rich.console import Console

from autotune.records.spec import BudgetSpec
from autotune.records.trial import Candidate, Outcome, Role, TrialRecord
from autotune.report.live import LiveView, time_left_s
from tests.runs import FIXED, HOSTILE, dozen, params, simulated, study, trial


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def candidate(role: Role = Role.SEARCH) -> Candidate:
    args = {**FIXED, **params(64, 2048)}
    return Candidate(params=params(64, 2048), args=args, role=role, fingerprint="f")


def console(*, terminal: bool, height: int = 40) -> tuple[Console, io.StringIO]:
    file = io.StringIO()
    return Console(file=file, width=80, height=height, force_terminal=terminal, color_system=None), file


def drive(view: LiveView, trials: Sequence[TrialRecord]) -> None:
    with view:
        for record in trials:
            view.phase(record.number, candidate(record.role), "launch")
            view.finished(record)
        view.message(HOSTILE)


def rendered(view: LiveView) -> str:
    drawn = Console(width=80, color_system=None)
    with drawn.capture() as capture:
        drawn.print(view.render())
    return capture.get()


def test_outside_a_terminal_each_event_is_one_plain_line() -> None:
    out, file = console(terminal=False)
    drive(LiveView(study(), console=out, environ={}), dozen())
    lines = file.getvalue().splitlines()
    assert len(lines) == 2 * len(dozen()) + 1
    assert all(line.isprintable() for line in lines)
    assert lines[0] == "trial 0, reference: launch"
    assert lines[11].startswith("trial 5: ran and met every SLO; 312 ±19 output tok/s; 412 p99 TTFT ms; best so far")
    assert "trial 2: ran out of memory while starting; torch.OutOfMemoryError" in file.getvalue()


def test_a_dumb_terminal_and_ci_get_plain_lines_too() -> None:
    for environ in ({"TERM": "dumb"}, {"CI": "true"}):
        out, file = console(terminal=True)
        drive(LiveView(study(), console=out, environ=environ), dozen())
        assert "\x1b" not in file.getvalue()
        assert file.getvalue().count("\n") == 2 * len(dozen()) + 1


def test_a_terminal_is_redrawn_and_left_with_the_cursor_shown() -> None:
    out, file = console(terminal=True)
    drive(LiveView(study(), console=out, environ={}), dozen())
    assert "★ 5" in file.getvalue()
    assert file.getvalue().rfind("\x1b[?25h") > file.getvalue().rfind("\x1b[?25l")
    assert "\x1b[2J" not in file.getvalue()


def test_what_runs_now_shows_its_phase_and_how_long_it_takes() -> None:
    clock = Clock()
    view = LiveView(study(), dozen(), console=console(terminal=True)[0], environ={}, clock=clock)
    view.phase(12, candidate(), "launch")
    clock.now_s += 30
    view.phase(12, candidate(), "warm-up")
    clock.now_s += 12
    text = rendered(view)
    assert "trial 12 · warm-up 12 s · trial 42 s" in text
    assert "max_num_seqs=64 max_num_batched_tokens=2048" in text
    assert "11 of 16 trials · best so far: trial 5, 312 ±19 output tok/s · about 10 min 00 s left" in re.sub(
        r"\s*\n", " ", text
    )


def test_a_long_study_fits_the_screen() -> None:
    trials = [*dozen(), *(trial(n, Outcome.OOM_LOAD, params(8, 512)) for n in range(12, 1000))]
    view = LiveView(study(), trials, console=console(terminal=True, height=30)[0], environ={})
    view.phase(1000, candidate(), "load")
    lines = rendered(view).splitlines()
    assert len(lines) <= 30
    numbers = {word for line in lines for word in line.split()[:2] if word.isdigit()}
    assert {"0", "5", "999"} <= numbers


def test_simulated_studies_say_so_before_anything_else() -> None:
    out, file = console(terminal=False)
    drive(LiveView(study(), [simulated(dozen()[0])], console=out, environ={}), [])
    assert file.getvalue().splitlines()[0] == "SIMULATED: no real engine ran; not evidence"


def test_time_left_is_what_the_tighter_budget_leaves() -> None:
    trials = dozen()  # 11 launches of 120 s
    assert time_left_s(study(budget=BudgetSpec(trials=16)), trials, 0.0) == 5 * 120.0
    assert time_left_s(study(budget=BudgetSpec(trials=16, hours=1.0)), trials, 3500.0) == 100.0
    assert time_left_s(study(budget=BudgetSpec(trials=16)), [], 0.0) is None


def test_a_reader_that_goes_away_does_not_end_the_study() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    file = os.fdopen(writer, "w", buffering=1)
    view = LiveView(study(), console=Console(file=file, force_terminal=False), environ={})
    drive(view, dozen())
    with suppress(BrokenPipeError):
        file.close()
