"""`python -m autotune.engines.simulated.triton --model-repository DIR …`: a stand-in for Triton's OpenAI frontend.

Labelled as one. It reads the repository that the real one would read, and computes nothing.
"""

from __future__ import annotations

import argparse
import os
import socket
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from autotune.engines.simulated import logs, process, triton_logs, trtllm_logs
from autotune.engines.simulated.flags import Options, ServeArgs, sim_options, sim_parser
from autotune.engines.simulated.process import StartupFailure
from autotune.engines.simulated.startup import Launch
from autotune.engines.simulated.triton_repository import Repository, read_repository
from autotune.engines.simulated.trtllm_options import checked_options
from autotune.engines.simulated.trtllm_startup import started

PROGRAM = "python -m autotune.engines.simulated.triton"
_USAGE = "--model-repository DIR --tokenizer MODEL --host HOST --openai-port PORT [--sim-* options]"
_ABOUT = (
    "A stand-in for Triton's OpenAI-compatible frontend over TensorRT-LLM's LLM API backend: it reads the model "
    "repository, speaks its protocol and keeps its pace, by a model of the scheduler. Its numbers are never evidence."
)


def main(argv: Sequence[str]) -> int:
    """Start and serve; returns the exit code: 0 stopped, 1 failed, 2 wrong usage."""
    given, parser = parse(argv, os.environ)
    sim = sim_options(parser, given)
    process.handle_signals_while_starting(sim.faults)
    try:
        repository = read_repository(given.model_repository)
        triton_logs.write(f"loading: {repository.backend}:1", source="model_lifecycle.cc:472")
        trtllm_logs.banner(repository.model)
        values = {**checked_options(repository.options, sim.faults), "host": given.host, "port": given.openai_port}
        name = {"served_model_name": [repository.front]}
        serve_args = ServeArgs(model=repository.model, given=values, values={**values, **name})
        launch = started(Options(serve=serve_args, sim=sim), values)
        sock = process.bind(given.host, given.openai_port)
    except StartupFailure as failure:
        return _failed(failure)
    triton_logs.models({repository.front: "READY", repository.backend: "READY"})
    return _serve(launch, sock, repository)


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[argparse.Namespace, argparse.ArgumentParser]:
    """Read the command line of `openai_frontend/main.py`; raises SystemExit(2) for one that is wrong."""
    parser = sim_parser(environ, PROGRAM, _USAGE, _ABOUT)
    parser.add_argument("--help", action="help")
    parser.add_argument("--model-repository", type=Path, required=True)
    parser.add_argument("--tokenizer")
    parser.add_argument("--backend", choices=("vllm", "tensorrtllm"))
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--openai-port", type=int, default=9000)
    return parser.parse_args(list(argv)), parser


def _failed(failure: StartupFailure) -> int:
    """As Triton relays what a model raised."""
    last = str(failure).splitlines()[-1]
    if not last.startswith("error: "):
        logs.plain(f"Traceback (most recent call last):\n{failure}")
        triton_logs.write(
            f"failed to load 'tensorrt_llm' version 1: Internal: {last}", source="model_lifecycle.cc:626", level="E"
        )
    logs.plain("error: creating server: Internal - failed to load all models")
    return 1


def _serve(launch: Launch, sock: socket.socket, repository: Repository) -> int:
    from autotune.engines.simulated.server import serve  # noqa: PLC0415 - what refuses to start needs no web framework
    from autotune.engines.simulated.triton_api import TritonApi  # noqa: PLC0415

    return serve(launch, sock, lambda launched, on_death: TritonApi(launched, on_death, repository))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
