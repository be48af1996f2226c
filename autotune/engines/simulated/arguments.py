"""How vLLM 0.32 rewrites an argument list before it is parsed (vllm/utils/argparse_utils.py), its quirks included."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any, NoReturn


def rewrite(argv: list[str]) -> list[str]:
    """Expand `--config`, write option names with dashes, fold dotted options into JSON."""
    return _merge_dotted(_dashed(_pull_config(argv)))


def refuse(text: str) -> NoReturn:
    """End as vLLM does for wrong arguments: the message on stderr, exit 2."""
    sys.stderr.write(text + "\n")
    raise SystemExit(2)


def _pull_config(argv: list[str]) -> list[str]:
    """Put the arguments of `--config FILE` before the command line's, which therefore win."""
    if "--config" not in argv:
        return argv
    index = argv.index("--config")
    if index == len(argv) - 1:
        refuse("ValueError: No config file specified! Please check your command-line arguments.")
    rest = argv[:index] + argv[index + 2 :]
    has_model = bool(rest) and not rest[0].startswith("-")
    return [*rest[:has_model], *_config_arguments(Path(argv[index + 1])), *rest[has_model:]]


def _config_arguments(path: Path) -> list[str]:
    """Flatten a YAML file as vLLM 0.32 does: `key: false` is dropped, so the engine's default holds."""
    import yaml  # noqa: PLC0415 - only with --config

    if path.suffix not in (".yaml", ".yml"):
        refuse(f"ValueError: Config file must be of a yaml/yml type. {path.suffix[1:]} supplied")
    try:
        content = yaml.safe_load(path.read_text()) or {}
    except (OSError, yaml.YAMLError) as error:
        refuse(f"{type(error).__name__}: {error}")
    return [text for key, value in content.items() for text in _flatten(f"--{key}", value)]


def _flatten(flag: str, value: object) -> list[str]:
    if isinstance(value, bool):
        return [flag] if value else []
    if isinstance(value, list):
        return [flag, *map(str, value)] if value else []
    if isinstance(value, dict):
        return [flag, json.dumps(value)]
    return [flag, str(value)]


def _dashed(argv: list[str]) -> list[str]:
    """Write option names with dashes (not what follows a dot or `=`)."""

    def dash(argument: str) -> str:
        name, separator, rest = re.match(r"(--[^.=]*)([.=]?)(.*)", argument, re.DOTALL).groups()  # type: ignore[union-attr]
        return name.replace("_", "-") + separator + rest

    return [dash(argument) if argument.startswith("--") else argument for argument in argv]


def _merge_dotted(argv: list[str]) -> list[str]:
    """Turn `--compilation-config.mode 3` into `--compilation-config {"mode": 3}`."""
    plain: list[str] = []
    nested: dict[str, dict[str, Any]] = {}
    arguments = iter(argv)
    for argument in arguments:
        name, equals, value = argument.partition("=")
        if not (name.startswith("-") and re.match(r"-+[A-Za-z]", name) and "." in name):
            plain.append(argument)
            continue
        flag, *keys = name.split(".")
        _nest(nested.setdefault(flag, {}), keys, value if equals else next(arguments, ""))
    return [*plain, *(text for flag, value in nested.items() for text in (flag, json.dumps(value)))]


def _nest(into: dict[str, Any], keys: list[str], text: str) -> None:
    for key in keys[:-1]:
        into = into.setdefault(key, {})
    try:
        into[keys[-1]] = json.loads(text)
    except ValueError:
        into[keys[-1]] = text
