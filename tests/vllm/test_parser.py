"""vLLM's own parser reads our YAML and our command lines alike, and still has the flags that we ship. No launch."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from autotune.engines.vllm import render_argv, render_yaml
from autotune.engines.vllm.flags import flags
from tests.vllm.conftest import ROOT

pytestmark = pytest.mark.vllm

PARSE = """
import json, sys
from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser(prog="vllm")
ServeSubcommand().subparser_init(parser.add_subparsers(required=True))
def parsed(words):
    namespace = vars(parser.parse_args(words))
    return {k: repr(v) for k, v in namespace.items() if k not in ("config", "model", "model_tag", "dispatch_function")}
print(json.dumps([[parsed(words) for words in pair] for pair in json.load(sys.stdin)]))
"""

CASES: list[dict[str, Any]] = [
    {},
    {"max_num_seqs": 8, "max_num_batched_tokens": 512, "max_model_len": "8k", "block_size": 16},
    {"enable_prefix_caching": False, "enable_chunked_prefill": True, "async_scheduling": False},
    {"enable_prefix_caching": True, "enable_chunked_prefill": False, "enforce_eager": True, "disable_log_stats": True},
    {"gpu_memory_utilization": 0.9, "seed": 7, "watermark": 1e-05, "dtype": "bfloat16", "optimization_level": 2},
    {"compilation_config": {"mode": 3, "cudagraph_mode": "PIECEWISE", "cudagraph_capture_sizes": [1, 2, 4]}},
    {
        "compilation_config.cudagraph_mode": "NONE",
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3},
    },
    {"cudagraph_capture_sizes": [1, 2, 4], "served_model_name": ["a", "b"], "allowed_origins": ["x", "y"]},
    {
        "kv_cache_dtype": "fp8",
        "quantization": "fp8",
        "hf_overrides": {"rope": {"factor": 2.0, "on": True, "off": None}},
    },
    {"limit_mm_per_prompt": {"image": 2}, "long_prefill_token_threshold": 0, "stream_interval": 10},
]


def ask(venv: Path, *arguments: str, stdin: str = "") -> str:
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    done = subprocess.run(
        [str(venv / "bin/python"), *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout.splitlines()[-1]


def test_yaml_and_command_line_give_vllm_the_same_settings(vllm_venv: Path, tmp_path: Path) -> None:
    pairs = []
    for number, args in enumerate(CASES):
        file = tmp_path / f"{number}.yaml"
        file.write_text(render_yaml("org/m", args))
        pairs.append((["serve", "org/m", *render_argv(args)], ["serve", "--config", str(file)]))
    parsed = json.loads(ask(vllm_venv, "-c", PARSE, stdin=json.dumps(pairs)))
    for args, (from_argv, from_yaml) in zip(CASES, parsed, strict=True):
        assert from_argv == from_yaml, args
    defaults = parsed[0][0]
    changed = [{name for name in defaults if defaults[name] != settings[name]} for settings, _ in parsed]
    assert changed[1] == {"max_num_seqs", "max_num_batched_tokens", "max_model_len", "block_size"}
    assert parsed[1][0]["max_model_len"] == "8000"
    assert parsed[2][1]["enable_prefix_caching"] == "False"


def test_the_shipped_parameters_are_those_of_the_installed_vllm(vllm_venv: Path, tmp_path: Path) -> None:
    out = tmp_path / "parameters.json"
    ask(vllm_venv, str(ROOT / "scripts/vllm_parameters.py"), str(out))
    installed = json.loads(out.read_text())["parameters"]
    assert installed.keys() == flags().keys()
    assert {name: facts["type"] for name, facts in installed.items()} == {f.name: f.type for f in flags().values()}
