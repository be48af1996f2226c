"""The best configuration for Triton's older backend, inflight_batcher_llm, which serves built engines.

Its repository is TensorRT-LLM's own templates, filled by TensorRT-LLM's own `fill_template.py`: a script does just
that, for copies of those files would be wrong for the next release. What the older backend takes only when an engine is
built goes to `trtllm-build`.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

from autotune.deploy.deployment import Deployment
from autotune.deploy.formats.triton import require_tensorrt_llm
from autotune.deploy.shell import checked, header
from autotune.engines.tensorrt_llm.options import options

BUILT = ("max_batch_size", "max_num_tokens", "max_seq_len")
"""Options of `trtllm-build` with the same names."""

RUNTIME: Mapping[str, str] = {
    "kv_cache_config.free_gpu_memory_fraction": "kv_cache_free_gpu_mem_fraction",
    "kv_cache_config.enable_block_reuse": "enable_kv_cache_reuse",
    "enable_chunked_prefill": "enable_chunked_context",
    "scheduler_config.capacity_scheduler_policy": "batch_scheduler_policy",
}
"""Placeholders of the template by the option that they stand for."""

PARALLEL = ("tensor_parallel_size", "pipeline_parallel_size")
DEFAULT_BATCH = 2048  # of trtllm-build, when none was measured

_LINES = """\
: "${TRTLLM:?the TensorRT-LLM sources of the release that builds the engine}"
: "${CHECKPOINT:?the converted checkpoint (examples/models/*/convert_checkpoint.py)}"
: "${TOKENIZER:?the folder of the tokenizer}"
REPOSITORY="${REPOSITORY:-triton_repository}"
ENGINE="${ENGINE:-$PWD/engine}"
fill() { python3 "$TRTLLM/triton_backend/tools/fill_template.py" -i "$REPOSITORY/$1/config.pbtxt" "$2"; }
"""


def export(deployment: Deployment) -> Mapping[str, str]:
    """triton-legacy.sh: builds an engine and fills Triton's inflight_batcher_llm templates with the measured options.

    Raises InputError for another engine's run.
    """
    require_tensorrt_llm(deployment, "triton-legacy")
    given = _leaves(options(deployment.args))
    batch = given.get("max_batch_size", DEFAULT_BATCH)
    build = [word for name in BUILT if name in given for word in (f"--{name}", str(given[name]))]
    runtime = {placeholder: _word(given[name]) for name, placeholder in RUNTIME.items() if name in given}
    lines = [
        "#!/bin/sh",
        header(deployment, _comments(given)) + "set -eu",
        _LINES + f'trtllm-build --checkpoint_dir "$CHECKPOINT" --output_dir "$ENGINE" {shlex.join(build)}'.rstrip(),
        'cp -R "$TRTLLM/triton_backend/all_models/inflight_batcher_llm" "$REPOSITORY"',
        *_filled(batch, runtime),
    ]
    return {"triton-legacy.sh": checked("\n".join(lines) + "\n")}


def _filled(batch: Any, runtime: Mapping[str, str]) -> list[str]:  # noqa: ANN401 - a YAML value
    logits = "logits_datatype:TYPE_FP32,prompt_embedding_table_data_type:TYPE_FP16"
    tokenizer = f'tokenizer_dir:"$TOKENIZER",triton_max_batch_size:{batch}'
    engine = {
        "triton_backend": "tensorrtllm",
        "triton_max_batch_size": str(batch),
        "decoupled_mode": "True",
        "max_beam_width": "1",
        "batching_strategy": "inflight_fused_batching",
        "max_queue_delay_microseconds": "0",
        "encoder_input_features_data_type": "TYPE_FP16",
        "exclude_input_in_output": "True",
        **runtime,
    }
    bls = f"triton_max_batch_size:{batch},decoupled_mode:True,bls_instance_count:1,accumulate_tokens:False,{logits}"
    values = ",".join(f"{name}:{value}" for name, value in engine.items())
    return [
        f"fill preprocessing {tokenizer},preprocessing_instance_count:1",
        f"fill postprocessing {tokenizer},postprocessing_instance_count:1",
        f"fill ensemble triton_max_batch_size:{batch},logits_datatype:TYPE_FP32",
        f"fill tensorrt_llm_bls {bls}",
        f'fill tensorrt_llm {shlex.quote(values)},engine_dir:"$ENGINE",{logits}',
    ]


def _comments(given: Mapping[str, Any]) -> list[str]:
    placed = {*BUILT, *RUNTIME}
    parallel = [f"{name}: {given[name]}" for name in PARALLEL if name in given]
    other = sorted(name for name in given if name not in placed and name not in PARALLEL)
    return [
        "The PyTorch backend was measured, not this one, which performs otherwise: measure it before you rely on it.",
        *([f"Convert the checkpoint with {', '.join(parallel)}."] if parallel else []),
        *([f"Without a counterpart here: {', '.join(other)}."] if other else []),
    ]


def _leaves(tree: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in tree.items():
        path = f"{before}{name}"
        found |= _leaves(value, f"{path}.") if isinstance(value, Mapping) else {path: value}
    return found


def _word(value: Any) -> str:  # noqa: ANN401 - a YAML value
    return str(value).lower() if isinstance(value, bool | str) else str(value)
