"""Results of searches, kept in a file that names the code they are of: other code begins anew."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

OURS = "autotune"
SOURCES = (
    *(f"autotune/models/{name}.py" for name in ("curve", "observed", "stationary", "twin")),
    *(f"autotune/models/{name}.py" for name in ("config", "kernel", "scheduler", "simulation", "steptime")),
    "autotune/trial/capacity.py",
    "autotune/trial/twin_search.py",
    "autotune/trial/crossing.py",
    "autotune/slo/guard.py",
    "benchmarks/capacity/engine.py",
    "benchmarks/capacity/rig.py",
    "benchmarks/capacity/others.py",
    "benchmarks/capacity/scenarios.py",
    "benchmarks/capacity/workload.py",
)
"""What results depend on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """One search of one launch. Ours: the method it ended with, what the twin said, whether the interval held truth.

    `error` is ln(found / true); `load_s` the seconds under load.
    """

    scenario: str
    repeat: int
    method: str
    error: float
    load_s: float
    how: str = ""
    twin_error: float | None = None
    covered: bool = False
    doubts: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A line of JSON a launch, which holds the results of all methods."""

    path: Path

    @classmethod
    def in_folder(cls, folder: Path) -> Kept:
        """The results of the code as it is."""
        folder.mkdir(parents=True, exist_ok=True)
        return cls(path=folder / f"{_digest()}.jsonl")

    def add(self, results: Sequence[Result]) -> None:
        """Keep what a launch gave, if it gave something."""
        if results:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps([asdict(result) for result in results]) + "\n")

    def results(self) -> list[Result]:
        """All that was kept. A last line that was cut short is left out."""
        if not self.path.exists():
            return []
        lines = self.path.read_text(encoding="utf-8").splitlines(keepends=True)
        return [Result(**each) for line in lines if line.endswith("\n") for each in json.loads(line)]

    def has(self, scenario: str, repeat: int) -> bool:
        """Whether a launch is among them."""
        return any(r.scenario == scenario and r.repeat == repeat for r in self.results())


def _digest() -> str:
    root = Path(__file__).parents[2]
    files = [file for pattern in SOURCES for file in sorted(root.glob(pattern))]
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]
