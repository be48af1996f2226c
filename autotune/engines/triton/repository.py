"""A Triton model repository for TensorRT-LLM's LLM API backend, from the arguments of a trial: pure.

Two models. `tensorrt_llm` is the backend's, its options in model.yaml. `ensemble` stands before it and is what clients
name: Triton's OpenAI frontend sends `stream`, `max_tokens` and prompts of shape [1, 1], where the backend's model takes
`streaming`, `sampling_param_max_tokens` and prompts of one dimension. So it maps names, and batches are declared as the
frontend shapes them. What the backend's model lacks, counts of tokens above all, model_loader.py adds. Checked against
the sources of Triton 2.60 to 2.73 and TensorRT-LLM 1.2 to 1.4rc, not run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from autotune.engines.nesting import nested
from autotune.engines.tensorrt_llm.options import options
from autotune.engines.triton.pbtxt import Word, render
from autotune.records.spec import Args

BACKEND, FRONT = "tensorrt_llm", "ensemble"
"""The backend's model, and the one that clients name."""

DEFAULT_BATCH_SIZE = 64
"""Requests that Triton's batcher may hand over at once, where nothing says how many."""

GROUPS = ("dynamic_batching", "instance_group", "triton_config")
"""Arguments that are Triton's; all others are TensorRT-LLM's."""

ONE = (1,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensor:
    """An input of the backend's model and what the frontend calls it; `flat`: the batch is its only dimension."""

    front: str
    back: str
    type: str
    flat: bool = False
    optional: bool = True


INPUTS = (
    Tensor(front="text_input", back="text_input", type="STRING", flat=True, optional=False),
    Tensor(front="stream", back="streaming", type="BOOL"),
    Tensor(front="max_tokens", back="sampling_param_max_tokens", type="INT32"),
    Tensor(front="stop_words", back="sampling_param_stop", type="STRING", flat=True),  # so one stop word, not several
    Tensor(front="temperature", back="sampling_param_temperature", type="FP32"),
    Tensor(front="top_p", back="sampling_param_top_p", type="FP32"),
    Tensor(front="frequency_penalty", back="sampling_param_frequency_penalty", type="FP32"),
    Tensor(front="presence_penalty", back="sampling_param_presence_penalty", type="FP32"),
    Tensor(front="seed", back="sampling_param_seed", type="UINT64"),
    Tensor(front="exclude_input_in_output", back="sampling_param_exclude_input_from_output", type="BOOL"),
    # The frontend always asks for these; what answers them does not look at them.
    Tensor(front="return_num_input_tokens", back="return_num_input_tokens", type="BOOL"),
    Tensor(front="return_num_output_tokens", back="return_num_output_tokens", type="BOOL"),
)
OUTPUTS = (("text_output", "STRING"), ("num_input_tokens", "INT32"), ("num_output_tokens", "INT32"))


def repository(args: Args, *, model: str, gpus: Sequence[str] = ()) -> Mapping[str, str]:
    """Return the repository's files by relative path.

    `args` are the trial's, dotted or nested: TensorRT-LLM's, and Triton's in GROUPS. `gpus`, as the engine's processes
    name them, are dealt out where there is more than one instance; too few to go round: those from 0 on.
    """
    own, engine = split(args)
    batch = batch_size(own)
    loader = resources.files("autotune.engines.triton").joinpath("model_loader.py").read_text(encoding="utf-8")
    return {
        f"{BACKEND}/config.pbtxt": render(_backend(own, batch, world_size(engine), gpus)),
        f"{BACKEND}/1/model.py": loader,
        f"{BACKEND}/1/model.yaml": _model_yaml(own, engine, model, batch),
        f"{FRONT}/config.pbtxt": render(_front(batch)),
        f"{FRONT}/1/README": "An ensemble has a version and no files.\n",
    }


def split(args: Args) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return Triton's arguments and TensorRT-LLM's, both nested."""
    whole = nested(args)
    own = {name: value if isinstance(value, Mapping) else {} for name, value in whole.items() if name in GROUPS}
    return own, {name: value for name, value in whole.items() if name not in GROUPS}


def batch_size(own: Mapping[str, Any]) -> int:
    """Return the most requests that Triton hands over at once: at least the largest that it waits for."""
    given = own.get("triton_config", {}).get("max_batch_size")
    return given if isinstance(given, int) and given > 0 else max(DEFAULT_BATCH_SIZE, *preferred(own), 1)


def preferred(own: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the batch sizes that are sent at once when they come about."""
    value = own.get("dynamic_batching", {}).get("preferred_batch_size")
    several = value if isinstance(value, list | tuple) else (value,)
    return tuple(each for each in several if isinstance(each, int))


def instances(own: Mapping[str, Any]) -> int:
    """Return how many copies of the model are loaded."""
    count = own.get("instance_group", {}).get("count")
    return count if isinstance(count, int) and count > 0 else 1


def world_size(engine: Args) -> int:
    """Return the GPUs that one instance takes."""
    sizes = (engine.get(f"{name}_parallel_size") for name in ("tensor", "pipeline", "context"))
    return math.prod(size for size in sizes if isinstance(size, int) and size > 0)


# --- files ------------------------------------------------------------------------------------------------------------


def _model_yaml(own: Mapping[str, Any], engine: Args, model: str, batch: int) -> str:
    """The backend's model hands all but `triton_config` to `LLM()`. Only decoupled models stream."""
    import yaml  # noqa: PLC0415  only a launch and the deploy stage write files

    triton = {**own.get("triton_config", {}), "max_batch_size": batch, "decoupled": True}
    document = {"model": model, "backend": "pytorch", **options(engine, always={}), "triton_config": triton}
    text: str = yaml.safe_dump(document, sort_keys=False, default_flow_style=False)
    return text


def _backend(own: Mapping[str, Any], batch: int, size: int, gpus: Sequence[str]) -> dict[str, Any]:
    count = instances(own)
    return {
        "name": BACKEND,
        "backend": "python",
        "max_batch_size": batch,
        "dynamic_batching": _batching(own),
        "instance_group": [{"count": count, "kind": Word("KIND_CPU")}],  # it takes its GPUs itself
        "parameters": _gpus_of_instances(count, size, gpus),
        "input": [_tensor(each.back, each) for each in INPUTS],
        "output": [_output(name, kind, reshape={"shape": ()}) for name, kind in OUTPUTS],
    }


def _batching(own: Mapping[str, Any]) -> dict[str, Any] | None:
    """None where the study leaves it out: each request is handed over as it comes."""
    if "dynamic_batching" not in own:
        return None
    rest = {name: value for name, value in own["dynamic_batching"].items() if name != "preferred_batch_size"}
    return {"preferred_batch_size": preferred(own) or None, **rest}


def _gpus_of_instances(count: int, size: int, gpus: Sequence[str]) -> list[dict[str, Any]] | None:
    """`0,1;2,3`: the GPUs of each instance, in order; the backend's model wants them for more than one."""
    if count == 1:
        return None
    dealt = gpus if len(gpus) >= count * size else [str(index) for index in range(count * size)]
    shares = [dealt[index * size : (index + 1) * size] for index in range(count)]
    return [{"key": "gpu_device_ids", "value": {"string_value": ";".join(",".join(share) for share in shares)}}]


def _tensor(name: str, tensor: Tensor, *, front: bool = False) -> dict[str, Any]:
    return {
        "name": name,
        "data_type": Word(f"TYPE_{tensor.type}"),
        "dims": ONE,
        **({"reshape": {"shape": ()}} if tensor.flat and not front else {}),
        **({"optional": True} if tensor.optional else {}),
    }


def _output(name: str, kind: str, **more: object) -> dict[str, Any]:
    return {"name": name, "data_type": Word(f"TYPE_{kind}"), "dims": ONE, **more}


def _front(batch: int) -> dict[str, Any]:
    step = {
        "model_name": BACKEND,
        "model_version": -1,
        "input_map": [{"key": each.back, "value": each.front} for each in INPUTS],
        "output_map": [{"key": name, "value": name} for name, _ in OUTPUTS],
    }
    return {
        "name": FRONT,
        "platform": "ensemble",
        "max_batch_size": batch,
        "input": [_tensor(each.front, each, front=True) for each in INPUTS],
        "output": [_output(name, kind) for name, kind in OUTPUTS],
        "ensemble_scheduling": {"step": [step]},
    }
