"""What `vllm serve` accepts, and arguments written the way it reads them: as a command line and as its YAML.

`parameters.json` holds the facts of one vLLM release, asked of its own parser by scripts/vllm_parameters.py.
"""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

from autotune.engines.nesting import nested, plain
from autotune.records.spec import Args

TUNER_OWNED = frozenset({"model", "model_tag", "host", "port", "uds", "config", "grpc", "grpc_port", "headless"})
"""The tuner starts and reaches the server by these: a study can't set them."""

SECRETS = frozenset({"api_key", "hf_token"})
"""Would put a secret on a command line, which every user of the machine can read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flag:
    """One parameter of `vllm serve`. `type`: bool, int, human_int (also `8k`), float, json, json_or_str or str."""

    name: str
    type: str
    negatable: bool = False
    nargs: str | None = None
    choices: tuple[Any, ...] = ()
    aliases: tuple[str, ...] = ()
    default: Any = None


NONE_MEANS: Mapping[str, Any] = {"quantization": "None"}
"""Parameters whose default None is a choice and not a value derived later, as a search space writes it."""


@cache
def flags() -> Mapping[str, Flag]:
    """Every parameter by name."""
    return {name: _flag(name, facts) for name, facts in _facts()["parameters"].items()}


def documented_defaults() -> Args:
    """Return the defaults that vLLM states; those that it derives from model and machine are absent."""
    return {**{flag.name: flag.default for flag in flags().values() if flag.default is not None}, **NONE_MEANS}


def flags_version() -> str:
    """The vLLM release that `flags` describes."""
    return str(_facts()["vllm"])


@cache
def _facts() -> Mapping[str, Any]:
    text = resources.files("autotune.engines.vllm").joinpath("parameters.json").read_text(encoding="utf-8")
    facts: Mapping[str, Any] = json.loads(text)
    return facts


def _flag(name: str, facts: Mapping[str, Any]) -> Flag:
    tuples = {key: tuple(facts.get(key, ())) for key in ("choices", "aliases")}
    return Flag(name=name, **{**facts, **tuples})


@cache
def by_option() -> Mapping[str, Flag]:
    """Flag by every option string that names it, `--no-…` excepted."""
    named = {f"--{dashed(flag.name)}": flag for flag in flags().values()}
    return named | {alias: flag for flag in flags().values() for alias in flag.aliases}


def similar(name: str) -> str:
    """A "did you mean" for an unknown parameter, or what to look at when nothing is close."""
    close = difflib.get_close_matches(name, flags().keys(), n=1)
    if close:
        return f"did you mean `{close[0]}`?"
    return f"`vllm serve --help=all` lists the parameters of vLLM {flags_version()}"


def dashed(name: str) -> str:
    """The name as options spell it."""
    return name.replace("_", "-")


# --- checks -----------------------------------------------------------------------------------------------------------


def complaint(name: str, value: Any) -> str | None:
    """Why `vllm serve` would refuse this value of a known parameter, or None."""
    if "." in name:
        return None if flags()[name.partition(".")[0]].type.startswith("json") else f"`{name}` has no fields"
    flag = flags()[name]
    values = value if flag.nargs in ("+", "*") and isinstance(value, list | tuple) else (value,)
    if not values:
        return "the list is empty"
    return next((why for item in values if (why := _complaint(flag, item)) is not None), None)


def _complaint(flag: Flag, value: Any) -> str | None:
    if not _fits(flag.type, value):
        return f"{value!r} is not {_KINDS[flag.type]}"
    if flag.choices and value not in flag.choices:
        return f"{value!r} is not one of {', '.join(map(str, flag.choices))}"
    return None


_KINDS = {
    "bool": "true or false",
    "int": "a whole number",
    "human_int": "a whole number, or one such as 8k",
    "float": "a number",
    "json": "a mapping or list",
    "json_or_str": "a mapping or text",
    "str": "text",
}


def _fits(kind: str, value: Any) -> bool:
    is_bool = isinstance(value, bool)
    match kind:
        case "bool":
            return is_bool
        case "int":
            return isinstance(value, int) and not is_bool
        case "human_int":
            return isinstance(value, int | str) and not is_bool
        case "float":
            return isinstance(value, int | float) and not is_bool
        case "str":
            return isinstance(value, int | float | str) and not is_bool
        case _:  # JSON may be given as text too
            return isinstance(value, Mapping | list | tuple | str)


# --- rendering --------------------------------------------------------------------------------------------------------


def _switch(name: str, value: bool) -> str | None:
    """The option that sets a boolean; None where leaving it out is the only way to say false."""
    if value:
        return f"--{dashed(name)}"
    flag = flags().get(name)
    return f"--no-{dashed(name)}" if flag is None or flag.negatable else None


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, Mapping | list | tuple) else str(value)


def _takes_list(name: str) -> bool:
    flag = flags().get(name)
    return flag is None or flag.nargs in ("+", "*")


def render_argv(args: Args) -> tuple[str, ...]:
    """Arguments as options of `vllm serve`: `--x`/`--no-x`, JSON for mappings, one word per item of a list."""
    return tuple(word for name, value in nested(args).items() for word in _options(name, value))


def _options(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, bool):
        switch = _switch(name, value)
        yield from (switch,) if switch else ()
    elif isinstance(value, list | tuple) and _takes_list(name):
        yield from (f"--{dashed(name)}", *map(_word, value)) if value else ()
    else:
        yield from (f"--{dashed(name)}", _word(value))


def render_yaml(model: str, args: Args) -> str:
    """Model and arguments as a file for `vllm serve --config`, read by vLLM as exactly `render_argv(args)`.

    Its loader drops `enable-x: false` (seen with 0.32), so a switch that is off is written `no-enable-x: true`.
    """
    import yaml  # noqa: PLC0415  only the deploy stage writes files

    content = {"model": model, **dict(pair for name, value in nested(args).items() for pair in _entries(name, value))}
    text: str = yaml.safe_dump(content, sort_keys=False, default_flow_style=False)
    return text


def _entries(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, bool):
        switch = _switch(name, value)
        yield from ((switch.removeprefix("--"), True),) if switch else ()
    elif isinstance(value, list | tuple):
        # The loader writes items by str(), so a mapping inside a list goes as the command line's JSON.
        items = [_word(item) if isinstance(item, Mapping | list | tuple) else item for item in value]
        yield dashed(name), items if _takes_list(name) else _word(value)
    else:
        yield dashed(name), plain(value)
