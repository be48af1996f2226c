"""`python -m benchmarks.soak`: run the soak, or go on with one, and print what came of it."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.console import Console
from rich.table import Table

from benchmarks.soak.soak import Soak

FLAT_MIB_PER_TRIAL = 0.5  # a trial's record stays in memory: some ten KiB


def main() -> int:
    """Return 0 when nothing was left behind, lost, repeated or grew."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--trials", type=int, default=200)
    options.add_argument("--kill-every-s", type=float, default=40.0, help="mean life of a tuner that is killed")
    options.add_argument("--folder", type=Path, default=Path("runs/soak"))
    given = options.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    console = Console(stderr=True)
    soak = Soak(given.folder.absolute(), trials=given.trials, kill_every_s=given.kill_every_s, tell=console.print)
    tally = soak.run()
    repeated = soak.repeated()
    table = Table("what", "how many", title=f"Soak of {given.trials} trials")
    for what, figure in (
        ("trials finished", len(tally.seen)),
        ("launches", sum(soak.faults().values())),
        ("launches with a fault", sum(n for fault, n in soak.faults().items() if fault != "none")),
        ("tuner killed (SIGKILL) and resumed", tally.kills),
        ("study stopped by itself and resumed", tally.stops),
        ("left behind", tally.orphans),
        ("trials lost", len(tally.lost)),
        ("trials repeated", repeated),
        ("open files more after the longest life", f"{tally.files_grown} in {len(tally.longest.files)} trials"),
        ("MiB a trial in it", f"{tally.mib_per_trial:.2f}"),
        ("outcomes", ", ".join(f"{name} {count}" for name, count in soak.outcomes().most_common())),
    ):
        table.add_row(what, str(figure))
    Console().print(table)
    flat = tally.files_grown <= 0 and tally.mib_per_trial < FLAT_MIB_PER_TRIAL
    return 0 if tally.finished and not (tally.orphans or tally.lost or repeated) and flat else 1


if __name__ == "__main__":
    sys.exit(main())
