"""Arguments are written the way vLLM reads them, as options and as YAML, and both say the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.nesting import nested
from autotune.engines.vllm import render_argv, render_yaml
from autotune.engines.vllm.flags import SECRETS, TUNER_OWNED, Flag, complaint, flags, flags_version, similar


def load_config_file(text: str) -> list[str]:
    """vLLM 0.32's rule for `--config` (vllm/utils/argparse_utils.py), without its help for `x: false`."""
    words: list[str] = []
    for key, value in yaml.safe_load(text).items():
        if isinstance(value, bool):
            words += [f"--{key}"] if value else []
        elif isinstance(value, list):
            words += [f"--{key}", *map(str, value)] if value else []
        elif isinstance(value, dict):
            words += [f"--{key}", json.dumps(value)]
        else:
            words += [f"--{key}", str(value)]
    return words


TEXT = st.text(max_size=12)
SCALARS = st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT
MAPPINGS = st.dictionaries(TEXT, SCALARS | st.lists(SCALARS, max_size=3), max_size=3)
VALUES = {
    "bool": st.booleans(),
    "int": st.integers(),
    "human_int": st.integers() | st.just("8k"),
    "float": st.floats(allow_nan=False),
    "json": MAPPINGS | st.lists(MAPPINGS, max_size=2),
    "json_or_str": MAPPINGS | TEXT,
    "str": TEXT | st.sampled_from(["true", "no", "1e3", "2026-11-30", "0x10", "~", "a: b", "-1", "#"]),
}


def values(flag: Flag) -> st.SearchStrategy[Any]:
    one = st.sampled_from(flag.choices) if flag.choices else VALUES[flag.type]
    return st.lists(one, max_size=3) if flag.nargs == "+" else one


OWNED = TUNER_OWNED | SECRETS  # refused in a study, so never rendered from arguments
PAIRS = st.one_of([st.tuples(st.just(name), values(flag)) for name, flag in flags().items() if name not in OWNED])
ARGS = st.lists(PAIRS, max_size=6).map(dict)


@settings(deadline=None)  # the first example reads the facts
@given(ARGS)
def test_yaml_and_command_line_say_the_same(args: dict[str, Any]) -> None:
    text = render_yaml("org/model", args)
    assert load_config_file(text) == ["--model", "org/model", *render_argv(args)]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ({"max_num_seqs": 8, "block_size": 16}, ["--block-size", "16", "--max-num-seqs", "8"]),
        ({"gpu_memory_utilization": 0.9}, ["--gpu-memory-utilization", "0.9"]),
        ({"enable_prefix_caching": True}, ["--enable-prefix-caching"]),
        ({"enable_prefix_caching": False}, ["--no-enable-prefix-caching"]),
        ({"disable_log_stats": False}, []),  # has no negative form: leaving it out says false
        ({"max_num_seqs": None}, []),
        ({"optimization_level": 2}, ["--optimization-level", "2"]),
        ({"compilation_config": {"mode": 3}}, ["--compilation-config", '{"mode": 3}']),
        ({"compilation_config.cudagraph_mode": "NONE"}, ["--compilation-config", '{"cudagraph_mode": "NONE"}']),
        ({"cudagraph_capture_sizes": [1, 2]}, ["--cudagraph-capture-sizes", "1", "2"]),
        ({"allowed_origins": ["*"]}, ["--allowed-origins", '["*"]']),
        ({"served_model_name": ["a"]}, ["--served-model-name", "a"]),
    ],
)
def test_options(args: dict[str, Any], words: list[str]) -> None:
    assert list(render_argv(args)) == words


def test_a_switch_that_is_off_is_written_so_that_vllms_loader_keeps_it() -> None:
    content = yaml.safe_load(render_yaml("m", {"enable_prefix_caching": False, "max_num_seqs": 4}))
    assert content == {"model": "m", "no-enable-prefix-caching": True, "max-num-seqs": 4}


def test_dotted_names_join_the_mapping_they_belong_to() -> None:
    args = {"compilation_config": {"mode": 3}, "compilation_config.pass_config.fuse_norm_quant": True}
    assert nested(args) == {"compilation_config": {"mode": 3, "pass_config": {"fuse_norm_quant": True}}}
    assert args["compilation_config"] == {"mode": 3}


@pytest.mark.parametrize(
    ("name", "value", "ok"),
    [
        ("max_num_seqs", 8, True),
        ("max_num_seqs", True, False),
        ("max_num_seqs", "8", False),
        ("max_model_len", "8k", True),
        ("gpu_memory_utilization", 1, True),
        ("enable_prefix_caching", "false", False),
        ("kv_cache_dtype", "fp8", True),
        ("kv_cache_dtype", "fp9", False),
        ("compilation_config", {"mode": 3}, True),
        ("compilation_config", 3, False),
        ("compilation_config.mode", 3, True),
        ("max_num_seqs.x", 3, False),
        ("cudagraph_capture_sizes", [1, "2"], False),
        ("cudagraph_capture_sizes", [], False),
    ],
)
def test_values_that_vllm_would_refuse_are_complained_about(name: str, value: object, ok: bool) -> None:
    assert (complaint(name, value) is None) is ok


def test_unknown_names_get_a_suggestion() -> None:
    assert similar("max_num_seqz") == "did you mean `max_num_seqs`?"
    assert flags_version() in similar("qqqq")
