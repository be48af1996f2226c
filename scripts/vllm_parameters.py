"""Write what `vllm serve` accepts as JSON: `vllm_parameters.py OUT.json`, run by vLLM's own Python.

Asks the parser itself. Its type functions are mostly anonymous, so each flag's kind is found by trying words on it.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import sys
from pathlib import Path
from typing import Any

import vllm
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

INTEGER, FRACTION, WORD, MAPPING, HUMAN = "7168", "0.5", "word", '{"a": 1}', "8k"


def accepts(action: argparse.Action, word: str) -> object:
    """What the flag's type makes of `word`; None when it refuses it."""
    convert = action.type or str
    try:
        return convert(word)
    except (ValueError, TypeError, SyntaxError, argparse.ArgumentTypeError):
        return None


def kind(action: argparse.Action) -> str:
    """bool, int, human_int (also `8k`), float, json, json_or_str or str."""
    if action.nargs == 0:
        return "bool"
    if accepts(action, WORD) is not None:
        return "json_or_str" if isinstance(accepts(action, MAPPING), dict) else "str"
    if accepts(action, HUMAN) is not None:
        return "human_int"
    if accepts(action, INTEGER) is None or accepts(action, MAPPING) is not None:
        return "json"
    return "float" if isinstance(accepts(action, FRACTION), float) else "int"


def fact(action: argparse.Action) -> dict[str, Any]:
    """The facts of one flag; what is not remarkable is left out."""
    flags = action.option_strings
    facts: dict[str, Any] = {"type": kind(action)}
    if isinstance(action, argparse.BooleanOptionalAction):
        facts["negatable"] = True
    if action.nargs in ("+", "*", "?"):
        facts["nargs"] = action.nargs
    if action.choices:
        facts["choices"] = [choice for choice in action.choices if choice is not None]
    aliases = [flag for flag in flags if flag != f"--{action.dest.replace('_', '-')}" and not flag.startswith("--no-")]
    if aliases:
        facts["aliases"] = aliases
    if isinstance(action.default, bool | int | float | str) and action.default != argparse.SUPPRESS:
        facts["default"] = action.default
    return facts


def main() -> None:
    """Ask and write."""
    parser = make_arg_parser(FlexibleArgumentParser(prog="vllm serve"))
    actions = [a for a in parser._actions if a.option_strings and a.dest != "help"]  # noqa: SLF001
    facts = {action.dest: fact(action) for action in sorted(actions, key=lambda a: a.dest)}
    lines = ",\n".join(f"    {json.dumps(name)}: {json.dumps(facts[name])}" for name in facts)
    header = {
        "source": "the argument parser of `vllm serve`, asked by scripts/vllm_parameters.py",
        "vllm": vllm.__version__,
        "read": dt.datetime.now(dt.UTC).date().isoformat(),
    }
    head = "".join(f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in header.items())
    Path(sys.argv[1]).write_text(f'{{\n{head}  "parameters": {{\n{lines}\n  }}\n}}\n')
    print(f"{sys.argv[1]}: {len(facts)} parameters of vLLM {vllm.__version__}")


if __name__ == "__main__":
    main()
