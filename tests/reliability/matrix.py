"""The fault matrix: every fault at every phase where it can strike, what the study makes of it, and how that is shown.

`COURSES` is the whole of it. A course is one study in whose trials one fault after the other strikes; the tests run
each, and `python -m tests.reliability.matrix` prints the table of docs/reliability.md from it.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import ExitCode
from autotune.records.trial import Outcome
from tests.engines.children import wait_until
from tests.reliability.scripted import FILE
from tests.reliability.studies import Place, Tuner, tuning, write_study

PHASES = {"launch": "starting$", "canary": "canary", "warm-up": "warming up", "load": "measuring", "stop": "stopping"}
"""Phase -> how the live view shows that a trial has reached it."""

SCRIPTED = Path(__file__).with_name("scripted.py")
TARGETS = {"engine": SCRIPTED.name, "keeper": "keeper.py", "load client": "autotune.load.client"}
KILLED = -signal.SIGKILL
ENDS: Mapping[int, tuple[int, ...]] = {
    ExitCode.OK: (ExitCode.OK, ExitCode.NOTHING_FEASIBLE)
}  # on a busy machine the samples may settle nothing

LEARNED = "learned, and the study goes on"
UNTOLD = "tried once more; nothing is learned, and the study goes on"
RETRIED = "tried again, and nothing is learned"
RESUMED = "`--resume` goes on with the trials after it"
NOTHING = "nothing: the trial counts"
STOPPED = "tried three times; the study stops, resumable"

SLOW = "slow_start:1.5,ignores_sigterm_starting"  # as vLLM, which loses SIGTERM while it starts
LEAKY = "leaves_children:300,leaves_shm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One fault. `launches` are the simulated server's faults, one for each launch that the cell takes; `target` gets
    `number` when the first of them has come to `phase`.

    `outcome` is what the cell's trial comes to ("ok": it was measured), None where it is left to be run again; `code`
    the tuner's exit code where the fault ends it.
    """

    phase: str
    fault: str
    then: str
    launches: tuple[str, ...]
    target: str = ""
    number: signal.Signals | None = None
    outcome: str | None = "ok"
    code: int | None = None

    @property
    def words(self) -> str:
        return f"{self.number.name} to the {self.target}" if self.number else self.fault


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """Cells in the order in which one study meets them, between trials that go well: so many `before`, so many `after`.
    `code` is the exit code at its end."""

    name: str
    cells: tuple[Cell, ...]
    code: int = ExitCode.OK
    startup_timeout_s: float = 60.0
    before: int = 0
    after: int = 0

    @property
    def launches(self) -> list[str]:
        return [*[""] * self.before, *(faults for cell in self.cells for faults in cell.launches)]

    @property
    def outcomes(self) -> list[str]:
        own = [cell.outcome for cell in self.cells if cell.outcome is not None]
        return [*["ok"] * self.before, *own, *["ok"] * self.after]

    def lives(self) -> Iterator[tuple[list[Cell], int]]:
        """The cells that each tuner of the study meets, and the exit code with which it ends."""
        met: list[Cell] = []
        for cell in self.cells:
            met.append(cell)
            if cell.code is not None:
                yield met, cell.code
                met = []
        yield met, self.code


# --- what an engine does by itself ------------------------------------------------------------------------------------


def _failing(phase: str, fault: str, does: str, outcome: str) -> Cell:
    return Cell(phase=phase, fault=fault, then=LEARNED, launches=(does,), outcome=outcome)


def _untold(phase: str, fault: str, does: str) -> Cell:
    return Cell(phase=phase, fault=fault, then=UNTOLD, launches=(does,) * 2, outcome="unknown")


def _survived(fault: str, does: str) -> Cell:
    return Cell(phase="stop", fault=fault, then=NOTHING, launches=(does,))


def _machine(phase: str, fault: str, does: str) -> Cell:
    return Cell(phase=phase, fault=fault, then=STOPPED, launches=(does,) * 3, outcome=None, code=ExitCode.ENVIRONMENT)


ENGINE = Course(
    name="an engine that fails",
    cells=(
        _survived("leaves a child in a session of its own", "leaves_children:300"),
        _survived("leaves shared memory", "leaves_shm"),
        _survived("ignores SIGTERM", "ignores_sigterm"),
        _failing("launch", "out of memory loading weights", "oom:weights", "oom_startup"),
        _failing("canary", "dies at the first request", "dies_at_first_request", "crashed_under_load"),
        _failing("canary", "HTTP 200 with an error event", "error_event:1", "bad_config"),
        _failing("canary", "cuts streams inside a chunk", "half_chunk", "bad_config"),
        _untold("load", "worker dies without a word, exit code 0", "dies_mid_stream:60"),
        _failing("load", "out of memory at three requests", "oom_under_load:3", "oom_load"),
        # The last, as it names an edge by which others are ruled out.
        _failing("launch", "KV cache too small for max_model_len", "oom:kv_too_small", "oom_startup"),
    ),
)
NEVER_READY = Course(
    name="an engine that never gets ready",
    cells=(
        _failing("launch", "hangs, nothing listens", "hang_at_start", "ready_timeout"),
        _failing("launch", "binds its port, never listens", "binds_without_listening", "ready_timeout"),
        _failing("launch", "answers 503 for ever", "always_503", "ready_timeout"),
    ),
    code=ExitCode.NOTHING_FEASIBLE,
    startup_timeout_s=4.0,
)
MACHINE = Course(
    name="a machine that spoils trials",
    cells=(
        _machine("launch", "another program takes its memory", "oom:free_memory"),
        _machine("load", "killed from outside, each time", "dies_after:10"),
    ),
    after=1,
)


# --- what somebody else does to a process of the study ----------------------------------------------------------------


def _to_tuner(phase: str, number: signal.Signals, does: str) -> Cell:
    code = KILLED if number is signal.SIGKILL else ExitCode.INTERRUPTED
    return Cell(
        phase=phase, fault="", then=RESUMED, launches=(does,), target="tuner", number=number, outcome=None, code=code
    )


def _to_part(phase: str, number: signal.Signals, target: str) -> Cell:
    launches = ("slow_start:1.5" if phase == "launch" else "", "")
    return Cell(phase=phase, fault="", then=RETRIED, launches=launches, target=target, number=number)


PARTS = Course(
    name="a study whose parts are killed",
    cells=(
        _to_part("launch", signal.SIGKILL, "engine"),
        _to_part("load", signal.SIGKILL, "engine"),
        _to_part("load", signal.SIGTERM, "engine"),
        _to_part("launch", signal.SIGKILL, "keeper"),
        _to_part("load", signal.SIGKILL, "keeper"),
        _to_part("canary", signal.SIGKILL, "load client"),
        _to_part("load", signal.SIGKILL, "load client"),
        Cell(phase="stop", fault="", then=NOTHING, launches=(LEAKY,), target="keeper", number=signal.SIGKILL),
    ),
)
TUNER = Course(
    name="a tuner that is killed",
    cells=(
        _to_tuner("launch", signal.SIGKILL, SLOW),
        _to_tuner("launch", signal.SIGTERM, SLOW),
        _to_tuner("canary", signal.SIGKILL, LEAKY),
        _to_tuner("warm-up", signal.SIGKILL, "leaves_shm"),
        _to_tuner("load", signal.SIGKILL, LEAKY),
        _to_tuner("load", signal.SIGTERM, "leaves_shm"),
        _to_tuner("load", signal.SIGINT, "leaves_shm"),
        _to_tuner("load", signal.SIGHUP, "leaves_shm"),
        _to_tuner("stop", signal.SIGKILL, LEAKY),
        _to_tuner("stop", signal.SIGINT, LEAKY),
    ),
    before=1,
    after=1,
)
COURSES: Sequence[Course] = (TUNER, PARTS, ENGINE, MACHINE, NEVER_READY)  # the longest first


# --- running one ------------------------------------------------------------------------------------------------------


def run_course(course: Course, folder: Path) -> list[str]:
    """Run a course from its start to its end, resumes included; return what was not as it should be."""
    place, study = Place(folder), _write(course, folder)
    wrong: list[str] = []
    finished: dict[str, str] = {}
    trial = course.before
    for life, (cells, code) in enumerate(course.lives()):
        with tuning(place, study, *["--resume"][: bool(life)]) as tuner:
            for cell in cells:
                _strike(cell, tuner, trial)
                trial += cell.outcome is not None
            ended = tuner.wait()
        words = [f"{cell.phase}: {cell.words}" for cell in cells]
        if ended not in ENDS.get(code, (code,)):
            wrong.append(f"{words}: exit code {ended}, not {code}:\n{tuner.text}")
        wrong += [f"{words}: left behind: {left}" for left in place.left_behind()]
        records = place.records()
        wrong += [f"{words}: lost: {name}" for name, text in finished.items() if records.get(name) != text]
        finished = records
    outcomes = [
        "ok" if Outcome(outcome).measured else outcome for outcome in place.outcomes() if outcome != "ruled_out"
    ]
    if outcomes != course.outcomes:
        wrong.append(f"outcomes are {outcomes}, not {course.outcomes}:\n{tuner.text}")
    return wrong


def _write(course: Course, folder: Path) -> Path:
    script = folder / "faults.txt"
    script.write_text("\n".join(course.launches))
    return write_study(
        folder,
        command=[sys.executable, str(SCRIPTED)],
        env={FILE: str(script)},
        trials=len(course.outcomes),
        startup_timeout_s=course.startup_timeout_s,
    )


def _strike(cell: Cell, tuner: Tuner, trial: int) -> None:
    if cell.number is None:
        return
    tuner.wait_for(rf"trial {trial}, .*: {PHASES[cell.phase]}")
    if cell.target == "tuner":
        tuner.process.send_signal(cell.number)
        return
    part = TARGETS[cell.target]
    wait_until(lambda: tuner.place.process(part), f"a process of {part}")
    target = tuner.place.process(part)
    assert target is not None
    target.send_signal(cell.number)


# --- the table --------------------------------------------------------------------------------------------------------


def table() -> str:
    """The matrix as Markdown; that each cell is survived, with nothing left or lost, is what the tests assert."""
    head = ["phase", "fault", "what the study does", "injected", "survived", "left behind", "lost"]
    cells = [cell for course in COURSES for cell in course.cells]
    rows = [[cell.phase, cell.words, cell.then, "1", "1", "0", "0"] for cell in cells]
    rows.sort(key=lambda row: ([*PHASES].index(row[0]), " to the " in row[1]))
    total = ["all", "", "", str(len(cells)), str(len(cells)), "0", "0"]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows, total])


if __name__ == "__main__":
    print(table())  # noqa: T201 - that is what it is run for
