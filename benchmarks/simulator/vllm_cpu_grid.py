"""A real vLLM on the CPU, measured through the product itself: `vllm-cpu-grid.yaml` in, a small table out.

The table is all that ranking needs. `other_cores` tells how many cores, on average, were busy during a launch with work
that was not the study's: the noise that a shared machine adds.
"""

from __future__ import annotations

import csv
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil

from autotune.records.spec import BudgetSpec, StudySpec
from autotune.records.trial import TrialRecord
from autotune.study import dump_study, load_study
from autotune.trial.store import RunDirectory

HERE = Path(__file__).parent
STUDY = HERE / "vllm-cpu-grid.yaml"
TABLE = HERE / "data" / "vllm_cpu.csv"
AGAIN = HERE / "data" / "vllm_cpu_again.csv"  # the first of them, launched once more
LAUNCHES, LAUNCHES_AGAIN = 16, 8

KNOBS = {
    "max_num_seqs": 128,
    "max_num_batched_tokens": 2048,
    "enable_chunked_prefill": True,
    "long_prefill_token_threshold": 0,
    "enable_prefix_caching": True,
    "block_size": 128,
}
"""What is tuned, with the defaults that vLLM 0.32's `create_engine_config` resolves on a CPU."""

METRICS = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p90", "tpot_ms.p50", "tpot_ms.p90")
NAMED = ("cpu", "cpu_cores", "vllm", "torch", "autotune")  # of a record's versions
SAMPLE_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One launch: its knobs, defaults filled in, and METRICS."""

    trial: int
    knobs: Mapping[str, int]
    values: Mapping[str, float]
    startup_s: float
    other_cores: float


@dataclass(slots=True)
class Bystanders:
    """CPU time that was spent outside one process and its descendants, as (Unix time, cores) of each interval."""

    root: psutil.Process
    intervals: list[tuple[float, float]] = field(default_factory=list)
    _ours_s: dict[int, float] = field(default_factory=dict)
    _last: tuple[float, float, float] | None = None

    def sample(self) -> None:
        """Book what happened since the last call."""
        for process in [self.root, *_children(self.root)]:
            try:
                spent = process.cpu_times()
            except psutil.NoSuchProcess:
                continue
            self._ours_s[process.pid] = spent.user + spent.system
        now = time.time(), _busy_s(), sum(self._ours_s.values())
        if self._last is not None:
            elapsed, busy, ours = (new - old for new, old in zip(now, self._last, strict=True))
            self.intervals.append((now[0], max(0.0, busy - ours) / elapsed))
        self._last = now

    def mean(self, begin: float, end: float) -> float:
        """Cores busy with other things between two Unix times; NaN when nothing was sampled there."""
        inside = [cores for at, cores in self.intervals if begin <= at <= end]
        return sum(inside) / len(inside) if inside else float("nan")


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return list(process.children(recursive=True))
    except psutil.NoSuchProcess:
        return []


def _busy_s() -> float:
    spent = psutil.cpu_times()
    return float(sum(spent) - spent.idle - getattr(spent, "iowait", 0.0) - getattr(spent, "guest", 0.0))


def study() -> StudySpec:
    """The study file as the product reads it, without asking the engine about its flags."""
    return load_study(STUDY)


def measure(runs: Path, table: Path, trials: int) -> None:
    """Run the first `trials` launches of the study, about a minute each, and write the table."""
    spec = replace(study(), budget=BudgetSpec(trials=trials))
    runs.mkdir(parents=True, exist_ok=True)
    file = runs / "study.yaml"
    file.write_text(dump_study(spec), encoding="utf-8")
    argv = [sys.executable, "-m", "autotune.cli", "study", str(file), "--runs", str(runs)]
    with subprocess.Popen(argv) as process:
        watch = Bystanders(psutil.Process(process.pid))
        while process.poll() is None:
            watch.sample()
            time.sleep(SAMPLE_S)
    if process.returncode:
        raise SystemExit(f"the study ended with exit code {process.returncode}: see {runs}")
    write(table, RunDirectory(runs / spec.name).trials(), watch)


def write(table: Path, records: Iterable[TrialRecord], watch: Bystanders) -> None:
    """Keep the launches that gave a measurement."""
    measured = [record for record in records if record.outcome.measured]
    names = ["trial", *KNOBS, *METRICS, "startup_s", "other_cores"]
    with table.open("w", encoding="utf-8", newline="") as file:
        file.write(f"# {_source(measured)}\n")
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(_row(record, watch) for record in measured)


def _source(records: list[TrialRecord]) -> str:
    versions = ", ".join(f"{name} {records[0].versions.get(name)}" for name in NAMED)
    return f"measured {datetime.now(UTC).date()} by `python -m benchmarks.simulator.vllm_cpu`; {versions}"


def _row(record: TrialRecord, watch: Bystanders) -> dict[str, Any]:
    begin = datetime.fromisoformat(record.started_utc).timestamp()
    values = record.measurements[0].values
    return {
        "trial": record.number,
        **{name: record.args.get(name, default) for name, default in KNOBS.items()},
        **{name: f"{values[name].value:.5g}" for name in METRICS},
        "startup_s": f"{record.startup_s or float('nan'):.1f}",
        "other_cores": f"{watch.mean(begin, begin + record.wall_s):.2f}",
    }


def read(table: Path) -> list[Measured]:
    """The launches of a table, in order."""
    with table.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    return [
        Measured(
            trial=int(row["trial"]),
            knobs={name: _number(row[name]) for name in KNOBS},
            values={name: float(row[name]) for name in METRICS},
            startup_s=float(row["startup_s"]),
            other_cores=float(row["other_cores"]),
        )
        for row in rows
    ]


def _number(text: str) -> int:
    """A count, or a flag as 0 or 1."""
    return int(text) if text not in ("True", "False") else int(text == "True")
