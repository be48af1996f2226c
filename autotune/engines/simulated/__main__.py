"""`python -m autotune.engines.simulated serve MODEL …`: a stand-in for `vllm serve`, labelled as one (`--help`)."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from autotune.engines.simulated import logs, process
from autotune.engines.simulated.flags import parse
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.simulated.startup import announce, start


def main(argv: Sequence[str]) -> int:
    """Start and serve; returns the exit code that vLLM would end with: 0 stopped, 1 failed, 2 wrong flags."""
    options = parse(argv, os.environ)
    process.handle_signals_while_starting(options.sim.faults)
    announce(options.serve)
    try:
        sock = process.bind(options.serve.host, options.serve.port)
        launch = start(options)
    except StartupFailure as failure:
        logs.plain(f"Traceback (most recent call last):\n{failure}")
        return 1
    from autotune.engines.simulated.server import serve  # noqa: PLC0415 - what refuses to start needs no web framework

    return serve(launch, sock)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
