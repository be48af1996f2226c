"""The simulated server with a random fault each launch: what `engine.command` of a soak's study starts."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

FAULTS = {
    "": 10.0,
    "slow_start:0.5": 1.0,
    "oom:weights": 1.0,
    "oom:weights,slow_start:0.5": 1.0,
    "dies_at_first_request": 1.0,
    "half_chunk": 0.2,
    "error_event:0.05": 0.3,
    "dies_after:10": 1.0,
    "dies_mid_stream:40": 1.0,
    "oom_under_load:3": 1.0,
    "leaves_children:600": 2.0,
    "leaves_shm": 2.0,
    "ignores_sigterm_starting,slow_start:0.5": 1.0,
    "ignores_sigterm": 0.2,
    "hang_at_start": 0.2,
}
"""Fault of the simulated server -> how often, relative to the others."""


def main() -> int:
    """Draw a fault, note it in the file that SOAK_FAULTS names, and be that server."""
    (fault,) = random.SystemRandom().choices([*FAULTS], [*FAULTS.values()])
    with Path(os.environ["SOAK_FAULTS"]).open("a") as noted:
        noted.write(f"{fault or 'none'}\n")
    os.environ["AUTOTUNE_SIM_FAULTS"] = fault
    from autotune.engines.simulated.__main__ import main as serve  # noqa: PLC0415 - after the fault was noted

    return serve(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
