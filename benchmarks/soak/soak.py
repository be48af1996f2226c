"""One study on an engine with random faults, whose tuner is killed again and again and goes on with --resume.

In: a folder and how many trials. Out: `Tally`, kept in the folder, so that a soak that is stopped goes on too.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from autotune.errors import ExitCode
from autotune.records.trial import Outcome
from autotune.trial.store import RunDirectory
from tests.reliability.studies import Place, Tuner, tuning, write_study

POLL_S = 0.2
CALM_RATIO = 0.4  # of the trials, the last: no kills, so that one tuner lives long enough to show that it stays flat
SETTLED_TRIALS = 3  # a tuner imports and caches in its first trials
STOPS_AT_MOST = 20  # of the study by itself for the machine's state: the simulated kind comes three in a row at times
GOES_ON = (ExitCode.OK, ExitCode.NOTHING_FEASIBLE)


@dataclass(slots=True)
class Life:
    """One tuner from start to end: open files and memory (MiB) at each trial that it finished."""

    files: list[int] = field(default_factory=list)
    memory_mib: list[float] = field(default_factory=list)


@dataclass(slots=True)
class Tally:
    """What happened so far. `seen` is the SHA-256 of each trial.json by the name of its folder."""

    kills: int = 0
    stops: int = 0
    orphans: int = 0
    lost: list[str] = field(default_factory=list)
    seen: dict[str, str] = field(default_factory=dict)
    lives: list[Life] = field(default_factory=list)
    finished: bool = False

    @property
    def longest(self) -> Life:
        return max(self.lives, key=lambda life: len(life.files), default=Life())

    @property
    def files_grown(self) -> int:
        """Open files more at the end of the longest life than once it had settled."""
        files = self.longest.files[SETTLED_TRIALS:]
        return files[-1] - files[0] if files else 0

    @property
    def mib_per_trial(self) -> float:
        """Memory that the longest life took a trial once it had settled."""
        memory = self.longest.memory_mib[SETTLED_TRIALS:]
        return (memory[-1] - memory[0]) / (len(memory) - 1) if len(memory) > 1 else 0.0


class Soak:
    """A soak in a folder; `run` goes on where it stopped."""

    def __init__(
        self, folder: Path, *, trials: int, kill_every_s: float, tell: Callable[[str], None], kills_at_most: int = 10**6
    ) -> None:
        self.place = Place(folder)
        self._kills_at_most = kills_at_most
        self._trials = trials
        self._kill_every_s = kill_every_s
        self._tell = tell
        self._chance = random.Random()
        self._state = folder / "soak.json"
        self._faults = folder / "faults.txt"
        self.tally = self._read()

    def run(self) -> Tally:
        """Run the study to its end."""
        command = [sys.executable, str(Path(__file__).with_name("engine.py"))]
        env = {"SOAK_FAULTS": str(self._faults)}
        # Not `auto`, which stops when it has learned what there is to learn.
        study = write_study(
            self.place.folder, trials=self._trials, sampler="tpe", command=command, env=env, startup_timeout_s=5.0
        )
        while not self.tally.finished and self.tally.stops <= STOPS_AT_MOST:
            options = ["--resume"] if (self.place.run / "study.json").exists() else []
            with tuning(self.place, study, *options) as tuner:
                self._live(tuner)
            left = self.place.left_behind()
            self.tally.orphans += len(left)
            self._write()
            self._tell(f"{len(self.tally.seen)} trials, {self.tally.kills} kills, left behind: {left or 'nothing'}")
        return self.tally

    def faults(self) -> Counter[str]:
        """Launches by the fault that they had."""
        return Counter(self._faults.read_text().split("\n")[:-1]) if self._faults.exists() else Counter()

    def repeated(self) -> int:
        """Configurations with more than one trial that counts."""
        trials = RunDirectory(self.place.run).trials()
        counting = [t.fingerprint for t in trials if t.outcome.measured or _learned(t.outcome)]
        return len(counting) - len(set(counting))

    def outcomes(self) -> Counter[str]:
        return Counter(trial.outcome.value for trial in RunDirectory(self.place.run).trials())

    def _live(self, tuner: Tuner) -> None:
        """Watch one tuner until it ends, or is killed when its time has come."""
        life, lives = Life(), self._chance.uniform(0.1, 1.9) * self._kill_every_s
        self.tally.lives.append(life)
        late = len(self.tally.seen) >= (1 - CALM_RATIO) * self._trials
        calm = late or self.tally.kills >= self._kills_at_most
        polls = 0
        while tuner.process.poll() is None:
            if self._look():
                self._measure(tuner.process.pid, life)
            polls += 1
            if not calm and polls * POLL_S > lives:
                tuner.process.kill()
                tuner.wait()
                self.tally.kills += 1
                self._look()
                return
            with suppress(Exception):
                tuner.process.wait(POLL_S)
        self._look()
        self._ended(tuner)

    def _ended(self, tuner: Tuner) -> None:
        code = tuner.wait()
        if code in GOES_ON:
            self.tally.finished = True
            if (launched := sum(self.outcomes().values()) - self.outcomes()[Outcome.RULED_OUT]) < self._trials:
                raise SystemExit(f"the study ended after {launched} of {self._trials} trials:\n{tuner.text}")
        elif code == ExitCode.ENVIRONMENT:
            self.tally.stops += 1
        else:
            raise SystemExit(f"the tuner ended with {code}:\n{tuner.text}")

    def _look(self) -> int:
        """Note new records and those that changed or went; return how many are new."""
        records = {name: _digest(text) for name, text in self.place.records().items()}
        seen = self.tally.seen
        self.tally.lost += [name for name, digest in seen.items() if records.get(name) != digest]
        new = len(records.keys() - seen.keys())
        seen.update(records)
        return new

    def _measure(self, pid: int, life: Life) -> None:
        with suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            life.files.append(process.num_fds())
            life.memory_mib.append(process.memory_info().rss / 2**20)

    def _read(self) -> Tally:
        if not self._state.exists():
            return Tally()
        raw: dict[str, Any] = json.loads(self._state.read_text())
        return Tally(**{**raw, "lives": [Life(**life) for life in raw["lives"]]})

    def _write(self) -> None:
        self._state.write_text(json.dumps(asdict(self.tally)))


def _learned(outcome: Outcome) -> bool:
    return outcome.teaches_infeasible and outcome is not Outcome.RULED_OUT


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
