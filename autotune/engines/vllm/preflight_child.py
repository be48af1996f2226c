"""Runs in vLLM's own Python, whichever release that is: asks vLLM's configuration classes about arguments.

In: JSON lines on stdin, `{"argv": [options of vllm serve]}`. Out: JSON lines on what stdout was at the start: `ready`
once vLLM is imported, or `failed`; then for each question `resolved` (settings), `refused` or `odd` (both with the
error's text). An error is odd unless it is of a type by which vLLM refuses values: it may as well be our own.

It imports the standard library and vLLM only, runs from Python 3.9 on, and touches no GPU: configuration is made from
what NVML tells. It ends with its stdin, and with the process that started it.
"""

# ruff: noqa: ANN401  another program's objects

from __future__ import annotations

import contextlib
import ctypes
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

HERE = str(Path(__file__).resolve().parent)  # `logs` or `flags` in it would shadow modules of others
PR_SET_PDEATHSIG = 1
PARSERS = ("vllm.entrypoints.launchers.cli_args", "vllm.entrypoints.openai.cli_args")  # 0.32; before
PARSER_CLASSES = ("vllm.utils.argparse_utils", "vllm.utils")  # since 0.11; before
SETTINGS = {  # of a VllmConfig, by the names of vLLM's parameters; what a release lacks is left out
    "model_config": ("max_model_len", "dtype", "quantization", "enforce_eager"),
    "cache_config": ("block_size", "cache_dtype", "gpu_memory_utilization", "enable_prefix_caching",
                     "kv_cache_memory_bytes", "num_gpu_blocks_override"),
    "scheduler_config": ("max_num_seqs", "max_num_batched_tokens", "enable_chunked_prefill", "chunked_prefill_enabled",
                         "long_prefill_token_threshold", "async_scheduling", "stream_interval"),
    "parallel_config": ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
                        "enable_expert_parallel"),
}  # fmt: skip
RENAMED = {"cache_dtype": "kv_cache_dtype", "chunked_prefill_enabled": "enable_chunked_prefill"}


class ArgumentError(ValueError):
    """The command line can't be parsed."""


class Vllm:
    """What is needed of the installed vLLM. Raises ImportError or AttributeError where it moved elsewhere."""

    def __init__(self) -> None:
        self.args = importlib.import_module("vllm.engine.arg_utils").AsyncEngineArgs
        self.parser = first_of(PARSERS, "make_arg_parser")(first_of(PARSER_CLASSES, "FlexibleArgumentParser")())
        self.parser.error = refuse_words
        try:  # the batch limits' defaults depend on it
            usage = importlib.import_module("vllm.usage.usage_lib").UsageContext.OPENAI_API_SERVER
            self.options = {"usage_context": usage}
        except (ImportError, AttributeError):
            self.options = {}

    def config(self, argv: list[str]) -> Any:
        """Return the VllmConfig of a command line."""
        return self.args.from_cli_args(self.parser.parse_args(argv)).create_engine_config(**self.options)

    def settings(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that a question comes to."""
        return settings(self.config(question["argv"]))


def first_of(modules: tuple[str, ...], name: str) -> Any:
    """Return `name` of the first of `modules` that has it."""
    for module in modules:
        with contextlib.suppress(ModuleNotFoundError, AttributeError):
            return getattr(importlib.import_module(module), name)
    raise ImportError(f"no {name} in {' or '.join(modules)}")


def refuse_words(message: str) -> NoReturn:
    """Stand in for argparse's own way, which would print the usage and exit."""
    raise ArgumentError(f"vllm serve: error: {message}")


def answer(engine: Any, question: dict[str, Any]) -> dict[str, Any]:
    """Return what an engine says to a question. Configuring sets environment variables: each question starts afresh."""
    before = dict(os.environ)
    try:
        return {"event": "resolved", "settings": engine.settings(question), "cuda": cuda_in_use()}
    except (ValueError, NotImplementedError) as error:
        return {"event": "refused", "error": text(error), "cuda": cuda_in_use()}
    except (Exception, SystemExit) as error:  # noqa: BLE001  anything may come out of a release that we don't know
        return {"event": "odd", "error": text(error), "cuda": cuda_in_use()}
    finally:
        os.environ.clear()
        os.environ.update(before)


def settings(config: Any) -> dict[str, Any]:
    """Return the settings of a VllmConfig that JSON can say; those without a value are absent."""
    found = {}
    for section, names in SETTINGS.items():
        for name in names:
            value = getattr(getattr(config, section, None), name, None)
            if value is not None:
                found[RENAMED.get(name, name)] = value if isinstance(value, (bool, int, float, str)) else str(value)
    return found


def text(error: BaseException) -> str:
    """Return an error as a log would end with it; pydantic's without the arguments that it repeats."""
    if isinstance(error, ArgumentError):
        return str(error)
    details = getattr(error, "errors", None)
    if type(error).__name__ == "ValidationError" and callable(details):
        with contextlib.suppress(Exception):
            return "\n".join(detail_text(detail) for detail in details())
    return "".join(traceback.format_exception_only(type(error), error)).strip()


def detail_text(detail: dict[str, Any]) -> str:
    """Return one of pydantic's errors: `Value error, …`, or the field and what is wrong with it."""
    message = str(detail["msg"])
    field = ".".join(map(str, detail.get("loc", ())))
    return message if not field or message.startswith("Value error") else f"{field}: {message}"


def cuda_in_use() -> bool:
    """Whether this process has come to hold a CUDA context, and with it GPU memory that is the engine's."""
    torch = sys.modules.get("torch")
    try:
        return bool(torch is not None and torch.cuda.is_initialized())
    except AttributeError:
        return False


def die_with_parent() -> None:
    """Have the kernel kill this process when its parent dies, also in the middle of an import."""
    parent = os.getppid()
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit(1)


def main(make: Any = Vllm) -> None:
    """Serve questions until stdin ends. Whatever the engine that `make` imports prints goes to stderr."""
    die_with_parent()
    sys.path[:] = [path for path in sys.path if path != HERE]
    out = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)

    def say(event: dict[str, Any]) -> None:
        out.write(json.dumps(event) + "\n")
        out.flush()

    questions = os.fdopen(os.dup(0), encoding="utf-8")
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)  # no import may read a question away
    try:
        engine = make()
    except (Exception, SystemExit) as error:  # noqa: BLE001  a broken environment may raise anything
        say({"event": "failed", "error": text(error)})
        return
    say({"event": "ready"})
    for line in questions:
        say(answer(engine, json.loads(line)))


if __name__ == "__main__":
    main()
