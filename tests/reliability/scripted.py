"""The simulated server with the fault that is next in a file: what `engine.command` of a course of faults starts."""

from __future__ import annotations

import fcntl
import os
import sys
from pathlib import Path

FILE = "SCRIPTED_FAULTS"  # the variable that names the file: a line for each launch


def next_fault(script: Path) -> str:
    """Take the first line out of the file; "" once there is none."""
    with script.open("r+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        first, *rest = [*file.read().split("\n"), ""]
        file.seek(0)
        file.truncate()
        file.write("\n".join(rest))
    return first


if __name__ == "__main__":
    os.environ["AUTOTUNE_SIM_FAULTS"] = next_fault(Path(os.environ[FILE]))
    from autotune.engines.simulated.__main__ import main

    sys.exit(main(sys.argv[1:]))
