"""Reads what runs today: an options YAML of `trtllm-serve`, or its command line copied from production."""

# ruff: noqa: ANN401  the value of an engine argument may be anything

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from autotune.engines.tensorrt_llm.fields import TUNER_OWNED, complaint, known, leaves, similar
from autotune.errors import InputError
from autotune.records.spec import Args

OPTIONS: Mapping[str, str] = {
    "tp_size": "tensor_parallel_size",
    "pp_size": "pipeline_parallel_size",
    "cp_size": "context_parallel_size",
    "ep_size": "moe_expert_parallel_size",
    "kv_cache_free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "free_gpu_memory_fraction": "kv_cache_config.free_gpu_memory_fraction",
    "kv_cache_dtype": "kv_cache_config.dtype",
}
"""Options of the command line that are called otherwise in the file."""

FILES = ("config", "extra_llm_api_options")
DEPLOYMENT = frozenset(
    {"host", "port", "tokenizer", "log_level", "metadata_server_config_file", "server_role", "backend"}
)
"""What belongs to the deployment, or can be nothing else: left out of the reference."""


def read_incumbent(text: str) -> Args:
    """Arguments as options of the file, without model, host and port.

    Takes an options YAML, or `trtllm-serve …` with continuation lines. Raises InputError naming every field that
    TensorRT-LLM doesn't have or whose value it would refuse.
    """
    if not text.strip():
        raise InputError("the incumbent is empty", "give an options YAML or the command line that runs in production")
    args = _from_command(text) if "trtllm-serve" in text else _from_yaml(text)
    kept = {name: value for name, value in args.items() if name not in TUNER_OWNED | DEPLOYMENT and value is not None}
    wrong = [problem for name, value in leaves(kept) if (problem := _problem(name, value))]
    if wrong:
        raise InputError(f"the incumbent can't be taken over: {'; '.join(wrong)}", "correct it, or leave these out")
    return kept


def _problem(name: str, value: Any) -> str | None:
    if not known(name):
        return f"TensorRT-LLM has no field `{name}`, {similar(name)}"
    why = complaint(name, value)
    return None if why is None else f"`{name}`: {why}"


def _from_yaml(text: str) -> dict[str, Any]:
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise InputError(f"the incumbent is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise InputError("the incumbent's YAML is not a mapping of options", "give what `--config` is given")
    return {str(name): value for name, value in content.items()}


def _from_command(text: str) -> dict[str, Any]:
    try:
        words = shlex.split(re.sub(r"\\\s*\n", " ", text), comments=True)
    except ValueError as error:
        raise InputError(f"the incumbent's command line can't be split: {error}", "close its quotes") from error
    return dict(_pairs(words))


def _pairs(words: list[str]) -> Iterator[tuple[str, Any]]:
    index = 0
    while index < len(words):
        word = words[index]
        index += 1
        if not word.startswith("--"):
            continue
        name, equals, value = word.removeprefix("--").partition("=")
        name = name.replace("-", "_")
        if name in FILES:
            raise InputError(f"the incumbent keeps its options in a file (--{name})", "give that file as the incumbent")
        if not equals and index < len(words) and not words[index].startswith("--"):
            value, index = words[index], index + 1
        yield OPTIONS.get(name, name), yaml.safe_load(value) if value else True
