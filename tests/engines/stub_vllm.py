"""A stand-in for an installed vLLM: the modules that preflight_child.py looks for, and misbehaviour on command."""

from __future__ import annotations

from pathlib import Path

CONFIG = '''
import os, sys, time
from types import SimpleNamespace as Config

class Refused(ValueError):
    """As pydantic's ValidationError."""
    def errors(self):
        return [{"msg": f"Value error, {self.args[0]}", "loc": ()}]
Refused.__name__ = "ValidationError"

class AsyncEngineArgs:
    @classmethod
    def from_cli_args(cls, arguments):
        made = cls()
        made.given = arguments
        return made

    def create_engine_config(self, usage_context=None):
        given = self.given
        match given.mode:
            case "hang":
                time.sleep(600)
            case "die":
                os._exit(3)
            case "print":
                os.write(1, b"{\\"event\\": \\"resolved\\"}\\n")
                print("junk")
            case "odd":
                raise AttributeError("moved")
            case "missing":
                raise OSError(f"{given.model} is not a local folder and is not a valid model identifier")
            case "secret":
                raise ValueError("the token is " + os.environ["SECRET"])
            case "unlisted":
                raise ValueError("no rule knows this")
            case "leave":
                assert "LEFT" not in os.environ
                os.environ["LEFT"] = "1"
        if given.max_num_batched_tokens < given.max_num_seqs:
            raise Refused(f"max_num_batched_tokens ({given.max_num_batched_tokens}) must be greater than or equal to "
                          f"max_num_seqs ({given.max_num_seqs}).")
        return Config(
            model_config=Config(max_model_len=4096, dtype=complex, quantization=None),
            scheduler_config=Config(max_num_seqs=given.max_num_seqs, chunked_prefill_enabled=True),
            cache_config=Config(cache_dtype="auto"),
            where=usage_context,
        )
'''

PARSER = """
def make_arg_parser(parser):
    parser.add_argument("model_tag", nargs="?")
    parser.add_argument("--model")
    parser.add_argument("--max-num-seqs", type=int, default=128)
    parser.add_argument("--max-num-batched-tokens", type=int, default=2048)
    parser.add_argument("--mode")
    return parser
"""

CLASS = "from argparse import ArgumentParser as FlexibleArgumentParser\n"
LAYOUTS = {
    "0.10": {"entrypoints/openai/cli_args.py": PARSER, "utils/__init__.py": CLASS},
    "0.32": {
        "entrypoints/launchers/cli_args.py": PARSER,
        "utils/argparse_utils.py": CLASS,
        "usage/usage_lib.py": "class UsageContext:\n    OPENAI_API_SERVER = 1\n",
    },
    "moved": {"utils/argparse_utils.py": CLASS},
}


def write_vllm(folder: Path, layout: str = "0.32", *, on_import: str = "") -> Path:
    """Write the stub into `folder`, which is to be on PYTHONPATH; `on_import` is code that runs first."""
    for name, text in {"__init__.py": on_import, "engine/arg_utils.py": CONFIG, **LAYOUTS[layout]}.items():
        path = folder / "vllm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for package in (path for path in (folder / "vllm").rglob("*") if path.is_dir()):
        (package / "__init__.py").touch()
    return folder
