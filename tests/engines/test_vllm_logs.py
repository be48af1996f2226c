"""What a vLLM says about itself is read from its log and its /metrics page (lines of vLLM 0.32)."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import pytest
import yaml

from autotune.engines.readiness import CRASHED_PHASE, PhaseWatch
from autotune.engines.vllm.downgrades import downgrade_of, downgrades, known_downgrades
from autotune.engines.vllm.logs import MAX_WARNINGS, PHASES, log_warnings, metric_sums, resolved_settings

API = "(APIServer pid=2056) INFO 11-30 10:37:55 "
LOG = f"""\
{API}[api.py:286] non-default args: {{'model_tag': '/m', 'max_num_seqs': 64, 'api_key': ['sk-x']}}
(APIServer pid=2056) WARNING 11-30 10:37:55 [cpu.py:224] Triton is not installed.
{API}[scheduler.py:307] Chunked prefill is enabled with max_num_batched_tokens=512.
(EngineCore pid=2068) WARNING 11-30 10:38:15 [cpu.py:224] Triton is not installed.
(EngineCore pid=2068) INFO 11-30 10:38:03 [core.py:1] Initializing a V1 LLM engine (v0.32.0) with config: model='/m', \
speculative_config=None, dtype=torch.bfloat16, max_seq_len=2048, served_model_name=m, enable_prefix_caching=True, \
o=Config(a=1, b='x, y'), compilation_config={{'mode': <CompilationMode.NONE: 0>, 'sizes': [1, 2]}}
(EngineCore pid=2068) INFO 11-30 10:38:14 [kv_cache_utils.py:2327] CPU KV cache size: 174,720 tokens
"""
METRICS = """\
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="a,b"} 2.0
vllm:num_preemptions_total{engine="1",model_name="a,b"} 3.0
vllm:num_preemptions_created{engine="0"} 1.78e+09
vllm:e2e_bucket{le="0.3"} 7.0
process_open_fds 31.0
vllm:cache_config_info{block_size="128",cache_dtype="auto",enable_prefix_caching="False",kv_cache_size_tokens="2097152",\
num_gpu_blocks="16384",sliding_window="None"} 1.0
"""


def test_settings_as_resolved_come_from_log_and_metrics() -> None:
    assert resolved_settings(LOG, METRICS) == {
        "max_num_seqs": 64,
        "max_num_batched_tokens": 512,
        "model": "/m",
        "dtype": "torch.bfloat16",
        "max_model_len": 2048,
        "served_model_name": "m",
        "o": "Config(a=1, b='x, y')",
        "compilation_config": {"mode": "NONE", "sizes": [1, 2]},
        "kv_cache_tokens": 2097152,
        "block_size": 128,
        "kv_cache_dtype": "auto",
        "enable_prefix_caching": False,  # the page of the running engine wins over the log
        "num_gpu_blocks": 16384,
    }


def test_a_log_that_says_nothing_gives_nothing() -> None:
    assert resolved_settings("", "") == {}


def test_warnings_are_kept_once() -> None:
    assert log_warnings(LOG) == ("Triton is not installed.",)


def test_what_lines_beside_the_configuration_tell_is_read_too() -> None:
    log = """\
(EngineCore pid=1) INFO 11-30 10:38:03 [core.py:1] Initializing a V1 LLM engine (v0.8.3) with config: model='/m', \
enable_prefix_caching=True, chunked_prefill_enabled=False
(Worker pid=2) INFO 11-30 10:38:04 [cuda.py:300] Using FLASH_ATTN attention backend out of potential backends: ['X']
(EngineCore pid=1) INFO 11-30 10:38:05 [vllm.py:1] Asynchronous scheduling is disabled.
(EngineCore pid=1) INFO 11-30 10:38:06 [k.py:1] GPU KV cache size: 174,720 tokens, Maximum concurrency for 2,048 \
tokens per request: 1,085.31x
"""
    assert resolved_settings(log) == {
        "model": "/m",
        "enable_prefix_caching": True,
        "enable_chunked_prefill": False,  # as releases before 0.12 called it
        "attention_backend": "FLASH_ATTN",
        "async_scheduling": False,
        "kv_cache_tokens": 174720,
        "kv_cache_max_concurrency": 1085.31,
    }


def test_downgrades_come_first_and_are_kept_whatever_their_level() -> None:
    noise = "".join(f"WARNING 11-30 10:37:55 [a.py:1] noise {index}\n" for index in range(2 * MAX_WARNINGS))
    said = "Chunked prefill is not supported for this model; disabling it."
    config = "non-default args: {'x': 'Prefix caching is disabled'}"
    kept = log_warnings(f"{noise}(APIServer pid=1) INFO 11-30 10:37:55 [b.py:2] {said}\n{API}[c.py:3] {config}\n")
    assert len(kept) == MAX_WARNINGS
    assert kept[:2] == (said, "noise 0")
    assert downgrades(kept) == (("chunked prefill off", said),)


@pytest.mark.parametrize("name", known_downgrades())
def test_every_downgrade_knows_its_example(name: str) -> None:
    text = resources.files("autotune.engines.vllm").joinpath("downgrades.yaml").read_text(encoding="utf-8")
    examples = {row["name"]: row["example"] for row in yaml.safe_load(text)}
    assert downgrade_of(examples[name]) == name


@pytest.mark.parametrize(
    "noise",
    [
        "Enforce eager set, disabling torch.compile, CUDAGraphs, and JIT kernel warmup.",
        "Chunked prefill is enabled with max_num_batched_tokens=512.",
        "Asynchronous scheduling is enabled.",
        "Found ulimit of 20000 and failed to automatically increase with error current limit exceeds maximum limit.",
        "Using max model len 2048",
    ],
)
def test_noise_is_no_downgrade(noise: str) -> None:
    assert downgrade_of(noise) is None


def test_metrics_are_summed_over_labels() -> None:
    assert metric_sums(METRICS) == {"vllm:num_preemptions_total": 5.0, "process_open_fds": 31.0}


def test_metrics_that_are_no_numbers_are_left_out() -> None:
    assert metric_sums('a 1\na{x="1"} NaN\nb +Inf\nc many\n') == {"a": 1.0}


def test_phases_follow_the_log_as_it_grows(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    heard: list[str] = []
    watch = PhaseWatch(log, PHASES, heard.append)
    for text in (
        "nothing\n",
        "Starting to load model x\n",
        "more\nCapturing CUDA gra",
        "phs\nmore\n",
    ):
        with log.open("a") as file:
            file.write(text)
        watch.look()
    assert heard == ["loading weights", "capturing CUDA graphs"]


def test_a_crash_is_not_hidden_by_what_the_log_says_after_it(tmp_path: Path) -> None:
    log = tmp_path / "engine.log"
    log.write_text("Traceback\nCapturing CUDA graphs\n")
    watch = PhaseWatch(log, (*PHASES, ("Traceback", CRASHED_PHASE)), lambda _: None)
    watch.look()
    assert watch.crashed
