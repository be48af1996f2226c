"""`python -m autotune.engines.simulated.trtllm serve MODEL …`: a stand-in for `trtllm-serve`, labelled as one."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from autotune.engines.simulated import logs, process, trtllm_logs
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.simulated.trtllm_options import parse
from autotune.engines.simulated.trtllm_startup import start


def main(argv: Sequence[str]) -> int:
    """Start and serve; returns the exit code that TensorRT-LLM would end with: 0 stopped, 1 failed, 2 wrong usage."""
    options = parse(argv, os.environ)
    process.handle_signals_while_starting(options.sim.faults)
    trtllm_logs.banner(options.serve.model)
    try:
        sock = process.bind(options.serve.host, options.serve.port)
        launch = start(options)
    except StartupFailure as failure:
        logs.plain(f"Traceback (most recent call last):\n{failure}")
        return 1
    from autotune.engines.simulated.server import serve  # noqa: PLC0415 - what refuses to start needs no web framework
    from autotune.engines.simulated.trtllm_api import TrtLlmApi  # noqa: PLC0415

    return serve(launch, sock, TrtLlmApi)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
