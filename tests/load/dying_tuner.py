"""A tuner killed in the middle of a level: `python -m tests.load.dying_tuner PORT FILE` notes its client's pid."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import psutil

from autotune.load import Progress, build_level, run_level
from autotune.records.spec import FixedLength, LoadSpec, WorkloadSpec
from autotune.records.trial import Endpoint


def die(_: Progress) -> None:
    (client,) = psutil.Process().children()
    Path(sys.argv[2]).write_text(str(client.pid))
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    spec = WorkloadSpec(input_tokens=FixedLength(tokens=16), output_tokens=FixedLength(tokens=3))
    run_level(
        Endpoint(host="127.0.0.1", port=int(sys.argv[1]), model_name="tiny"),
        build_level(spec, LoadSpec(concurrency=2), seed=1),
        on_progress=die,
    )
