"""Reads what runs today: a vLLM configuration YAML, or a command line copied from production."""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import yaml

from autotune.engines.vllm.flags import SECRETS, TUNER_OWNED, Flag, by_option, complaint, flags, similar
from autotune.errors import InputError
from autotune.records.spec import Args

NOT_TUNED = TUNER_OWNED | SECRETS | {"served_model_name"}
"""What belongs to the deployment, not to the configuration: left out of the reference."""

_HUMAN = re.compile(r"^(\d+(?:\.\d+)?)([kKmMgGtT])$")
_DECIMAL = {"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12}  # vLLM: 1k is 1000, 1K is 1024
_BINARY = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def read_incumbent(text: str) -> Args:
    """Arguments by vLLM's own names, without model, host, port, API key and served name.

    Takes a YAML of `key: value` lines (dashes or underscores), or `vllm serve …`, `python -m vllm…`, or
    `docker run … vllm/vllm-openai …` with continuation lines and variables in front. Raises InputError naming every
    parameter that vLLM doesn't have or whose value it would refuse.
    """
    if not text.strip():
        raise InputError("the incumbent is empty", "give a vLLM YAML or the command line that runs in production")
    pairs = _from_yaml(text) if _looks_like_yaml(text) else _from_command(text)
    return _checked(pairs)


def _looks_like_yaml(text: str) -> bool:
    lines = [line for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    return bool(lines) and bool(re.match(r"^(---|[\w.-]+:(\s|$)|\{)", lines[0]))


# --- YAML -------------------------------------------------------------------------------------------------------------


def _from_yaml(text: str) -> list[tuple[str, Any]]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"the incumbent is not valid YAML: {error}") from error
    if not isinstance(content, Mapping):
        raise InputError("the incumbent's YAML is not a mapping of vLLM's parameters")
    return [_from_entry(str(key), value) for key, value in content.items()]


def _from_entry(key: str, value: Any) -> tuple[str, Any]:
    name = _canonical(key)
    if name not in flags() and name.startswith("no_") and value is True:
        return name.removeprefix("no_"), False
    flag = flags().get(name)
    return name, _converted(flag, value) if flag is not None and isinstance(value, str) else value


def _canonical(key: str) -> str:
    """Underscores in the parameter, nothing changed in the fields behind its first dot; aliases resolved."""
    head, dot, rest = key.partition(".")
    option = "--" + head.replace("_", "-")
    flag = by_option().get(option)
    return (flag.name if flag else head.replace("-", "_")) + dot + rest


# --- command line -----------------------------------------------------------------------------------------------------


def _from_command(text: str) -> list[tuple[str, Any]]:
    try:
        words = shlex.split(re.sub(r"\\\s*\n", " ", text), comments=True)
    except ValueError as error:
        raise InputError(f"the incumbent's command line can't be read: {error}", "check its quotes") from error
    return list(_options(_behind_program(words)))


def _behind_program(words: Sequence[str]) -> Sequence[str]:
    """The words that vLLM's own parser gets."""
    for index, word in enumerate(words):
        if word == "serve":
            return words[index + 1 :]
        if word.startswith("vllm.entrypoints") and "." in word:
            return words[index + 1 :]
        if "vllm" in word and words[0] in ("docker", "podman", "nerdctl", "sudo") and _is_image(word):
            return _behind_program(words[index + 1 :]) if "serve" in words[index + 1 :] else words[index + 1 :]
    if words and words[0].startswith("-"):
        return words
    raise InputError(
        "the incumbent is neither a vLLM YAML nor a vLLM command line",
        "give `key: value` lines, or a command such as `vllm serve MODEL --max-num-seqs 64`",
    )


def _is_image(word: str) -> bool:
    return not word.startswith("-") and "=" not in word and ("/" in word or ":" in word)


def _options(words: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(name, value) of each option; words before the first option are the model."""
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if word in (";", "&&", "|", "&", ">", "2>&1") or word.startswith((">", "2>")):
            return
        if not word.startswith("-") or word == "--":
            continue
        option, equals, given = word.partition("=")
        values, index = _values(words, index, option, [given] if equals else [])
        yield _pair(option, values)


def _values(words: Sequence[str], index: int, option: str, values: list[str]) -> tuple[list[str], int]:
    """The values of `option` and the index behind them."""
    flag = _flag_of(option)
    many = flag is not None and flag.nargs in ("+", "*")
    if flag is None and _switched_off(option) is None and "." not in option:
        return values, index  # unknown: it is refused with its name, whatever follows
    attached = option.startswith("-O") and len(option) > len("-O")
    if attached or (flag is not None and flag.type == "bool") or _switched_off(option) is not None:
        return values, index
    while index < len(words) and (many or not values) and not _is_option(words[index]):
        values.append(words[index])
        index += 1
    return values, index


def _is_option(word: str) -> bool:
    return word.startswith("-") and not re.match(r"^-[\d.]", word)


def _flag_of(option: str) -> Flag | None:
    if option.startswith("--"):
        return by_option().get("--" + option[2:].replace("_", "-"))
    if option.startswith("-O"):
        return flags()["optimization_level"]
    return by_option().get(option)


def _switched_off(option: str) -> str | None:
    """Name of the switch that `--no-…` turns off."""
    name = option.removeprefix("--").replace("-", "_")
    bare = name.removeprefix("no_")
    return bare if name not in flags() and bare != name and bare in flags() else None


def _pair(option: str, values: list[str]) -> tuple[str, Any]:
    if option.startswith("-O") and not option.startswith("--"):
        return "optimization_level", option[2:] or (values[0] if values else "")
    switch = _switched_off(option)
    if switch is not None:
        return switch, False
    flag = _flag_of(option)
    if flag is None:
        name = _canonical(option.lstrip("-"))
        return name, _json_or_text(values[0]) if values else True
    if flag.type == "bool" and not values:
        return flag.name, True
    converted = [_converted(flag, value) for value in values]
    return flag.name, converted if flag.nargs in ("+", "*") else (converted[0] if converted else None)


# --- values -----------------------------------------------------------------------------------------------------------


def _converted(flag: Flag, text: str) -> Any:
    """The value that vLLM's parser makes of a word; text that doesn't fit stays text, to be complained about."""
    try:
        match flag.type:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "human_int":
                return _human_int(text)
            case "json" | "json_or_str":
                return _json_or_text(text)
    except ValueError:
        return text
    return text


def _human_int(text: str) -> int:
    match = _HUMAN.match(text)
    if match is None:
        return int(text)
    return int(float(match.group(1)) * (_DECIMAL | _BINARY)[match.group(2)])


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _checked(pairs: Sequence[tuple[str, Any]]) -> Args:
    args: dict[str, Any] = {}
    wrong: list[str] = []
    for name, value in pairs:
        if name.partition(".")[0] not in flags():
            wrong.append(f"vLLM has no parameter `{name}`; {similar(name)}")
        elif name in NOT_TUNED or value is None:
            continue
        elif (why := complaint(name, value)) is not None:
            wrong.append(f"`{name}`: {why}")
        else:
            args[name] = value
    if wrong:
        raise InputError("the incumbent can't be read:\n  " + "\n  ".join(wrong))
    return args
