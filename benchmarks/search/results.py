"""Runs on disk, one file each: what is there and was made by this code is not run again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.search.protocol import Run, Step
from benchmarks.search.versions import of_strategy


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run that is wanted."""

    landscape: str
    strategy: str
    seed: int
    launches: int

    @property
    def version(self) -> str:
        """Of the code that it depends on."""
        return of_strategy(ours=self.strategy.startswith("ours"))


@dataclass(frozen=True, slots=True)
class Results:
    """The folder of runs."""

    folder: Path

    def known(self, task: Task) -> Run | None:
        """Return the run of a task, cut to its launches; None where it is missing, shorter or of other code."""
        path = self._path(task)
        if not path.exists():
            return None
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["version"] != task.version or stored["launches"] < task.launches:
            return None
        return _run(stored["run"], task.launches)

    def keep(self, task: Task, run: Run) -> None:
        """Write a run."""
        path = self._path(task)
        path.parent.mkdir(parents=True, exist_ok=True)
        draft = path.with_suffix(".tmp")
        draft.write_text(json.dumps({"version": task.version, "launches": task.launches, "run": asdict(run)}))
        draft.replace(path)

    def of(self, tasks: list[Task]) -> Iterator[Run]:
        """Yield the runs that are there."""
        yield from (run for task in tasks if (run := self.known(task)) is not None)

    def _path(self, task: Task) -> Path:
        return self.folder / task.landscape / task.strategy.replace(" ", "_") / f"{task.seed}.json"


def _run(stored: dict[str, Any], launches: int) -> Run:
    return Run(**{**stored, "steps": tuple(Step(**step) for step in stored["steps"][:launches])})
