"""Launches that were evaluated before, on disk: by landscape, arguments, seed and the version of the code."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from autotune.records.spec import Args
from autotune.records.trial import Outcome
from benchmarks.search.evaluation import Died, Measured, measure, truth
from benchmarks.search.landscapes import Landscape
from benchmarks.search.protocol import Evaluator
from benchmarks.search.versions import of_evaluation

WAIT_S = 60.0  # for another process that writes


@dataclass(slots=True)
class Memo:
    """A file that several processes share."""

    connection: sqlite3.Connection
    fresh: int = 0

    @classmethod
    def at(cls, path: Path) -> Memo:
        """Open the memo at `path`, made where there is none."""
        path.parent.mkdir(parents=True, exist_ok=True)
        connection = sqlite3.connect(path, timeout=WAIT_S, isolation_level=None)
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=OFF")
        connection.execute("CREATE TABLE IF NOT EXISTS launches (key TEXT PRIMARY KEY, found TEXT)")
        return cls(connection)

    def evaluator(self) -> Evaluator:
        """Return where the protocol gets its figures from."""
        return Evaluator(measure=self._measure, truth=self._truth)

    def _measure(self, landscape: Landscape, args: Args, seed: int) -> Measured:
        return self._known(_key(landscape, args, seed), lambda: measure(landscape, args, seed))

    def _truth(self, landscape: Landscape, args: Args) -> Measured:
        return self._known(_key(landscape, args, None), lambda: truth(landscape, args))

    def _known(self, key: str, evaluate: Callable[[], Measured]) -> Measured:
        row = self.connection.execute("SELECT found FROM launches WHERE key = ?", (key,)).fetchone()
        if row is not None:
            return _read(row[0])
        found = evaluate()
        self.fresh += 1
        text = json.dumps(asdict(found))
        self.connection.execute("INSERT OR REPLACE INTO launches VALUES (?, ?)", (key, text))
        return found


def _key(landscape: Landscape, args: Args, seed: int | None) -> str:
    return json.dumps([landscape.name, dict(args), seed, of_evaluation()], sort_keys=True, default=str)


def _read(text: str) -> Measured:
    stored = json.loads(text)
    died = None if stored["died"] is None else Died(stored["died"])
    return Measured(**{**stored, "outcome": Outcome(stored["outcome"]), "died": died})
