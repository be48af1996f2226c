"""The model repository: a pure function of the arguments, that Triton's own text format reads."""

from __future__ import annotations

import importlib.util
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.engines.tensorrt_llm.options import options
from autotune.engines.triton.pbtxt import PbtxtError, Word, parse, render
from autotune.engines.triton.repository import BACKEND, FRONT, INPUTS, repository

ARGS = {
    "max_batch_size": 128,
    "tensor_parallel_size": 2,
    "kv_cache_config.dtype": "fp8",
    "speculative_config.decoding_type": "None",
    "dynamic_batching.max_queue_delay_microseconds": 500,
    "dynamic_batching.preferred_batch_size": [4, 8],
    "instance_group.count": 2,
    "triton_config.max_batch_size": 32,
}


def written(**args: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """config.pbtxt of both models, and model.yaml."""
    made = repository(args, model="/m", gpus=("0", "1", "2", "3"))
    back, front = (parse(made[f"{name}/config.pbtxt"]) for name in (BACKEND, FRONT))
    return back, front, yaml.safe_load(made[f"{BACKEND}/1/model.yaml"])


def test_every_argument_is_in_the_file_that_it_belongs_to() -> None:
    back, front, model = written(**ARGS)
    assert back["dynamic_batching"] == {"preferred_batch_size": [4, 8], "max_queue_delay_microseconds": 500}
    assert back["instance_group"] == [{"count": 2, "kind": "KIND_CPU"}]
    assert back["parameters"] == [{"key": "gpu_device_ids", "value": {"string_value": "0,1;2,3"}}]
    assert (back["max_batch_size"], front["max_batch_size"]) == (32, 32)
    assert model == {
        "model": "/m",
        "backend": "pytorch",
        "max_batch_size": 128,
        "tensor_parallel_size": 2,
        "kv_cache_config": {"dtype": "fp8"},
        "triton_config": {"max_batch_size": 32, "decoupled": True},
    }


def test_what_is_left_out_is_tritons_own_default_and_batches_hold_what_is_preferred() -> None:
    back, _, model = written()
    assert "dynamic_batching" not in back
    assert "parameters" not in back
    assert back["instance_group"] == [{"count": 1, "kind": "KIND_CPU"}]
    assert model["triton_config"]["max_batch_size"] == 64
    assert written(**{"dynamic_batching.preferred_batch_size": 200})[0]["max_batch_size"] == 200


def test_instances_without_enough_gpus_given_take_those_from_0_on() -> None:
    made = repository({"instance_group.count": 2}, model="m", gpus=("GPU-1",))
    assert '"0;1"' in made[f"{BACKEND}/config.pbtxt"]


def test_the_ensemble_takes_all_that_the_frontend_sends_in_the_shape_it_sends_it() -> None:
    """Names: openai_frontend/engine/utils/triton.py of Triton 2.73; each is [[value]], a batch of one."""
    back, front, _ = written(**ARGS)
    sends = {
        *("text_input", "stream", "max_tokens", "stop_words", "top_p", "frequency_penalty", "presence_penalty", "seed"),
        *("temperature", "exclude_input_in_output", "return_num_input_tokens", "return_num_output_tokens"),
    }
    assert {tensor["name"] for tensor in front["input"]} == sends
    assert all(tensor["dims"] == [1] for tensor in (*front["input"], *back["input"]))
    (step,) = front["ensemble_scheduling"]["step"]
    inside = {tensor["name"]: tensor for tensor in back["input"]}
    outside = {tensor["name"]: tensor for tensor in front["input"]}
    assert {entry["value"] for entry in step["input_map"]} == sends  # Triton refuses an input that is not used
    for entry in step["input_map"]:
        assert inside[entry["key"]]["data_type"] == outside[entry["value"]]["data_type"]
    assert inside["text_input"]["reshape"] == {"shape": []}  # the backend's model takes prompts of one dimension
    assert len(INPUTS) == len(sends)


def model_config_pb2() -> Any:
    """Triton's messages as its client has them; the client itself wants gRPC."""
    package = importlib.util.find_spec("tritonclient")
    if package is None or package.origin is None:
        pytest.skip("no tritonclient here")
    file = Path(package.origin).parent / "grpc" / "model_config_pb2.py"
    spec = importlib.util.spec_from_file_location("model_config_pb2", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_tritons_own_protobuf_reads_both_files() -> None:
    config, text_format = model_config_pb2(), pytest.importorskip("google.protobuf.text_format")
    made = repository(ARGS, model="/m", gpus=("0", "1", "2", "3"))
    back, front = (text_format.Parse(made[f"{name}/config.pbtxt"], config.ModelConfig()) for name in (BACKEND, FRONT))
    assert back.dynamic_batching.preferred_batch_size == [4, 8]
    assert front.ensemble_scheduling.step[0].model_name == BACKEND


NAMES = st.from_regex(r"[a-z][a-z_]{0,8}", fullmatch=True)


@settings(max_examples=30)
@given(st.dictionaries(NAMES, st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=12), max_size=5))
def test_what_is_measured_is_what_model_yaml_says(args: dict[str, Any]) -> None:
    kept = {name: value for name, value in args.items() if name not in ("model", "backend")}
    _, _, model = written(**kept)
    assert {name: model[name] for name in options(kept, always={})} == options(kept, always={})


SCALARS = st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=20) | NAMES.map(Word)
LISTS = st.lists(SCALARS, max_size=3)
MESSAGES = st.recursive(
    st.dictionaries(NAMES, SCALARS | LISTS, max_size=3),
    lambda inner: st.dictionaries(NAMES, SCALARS | inner | st.lists(inner, min_size=1, max_size=3), max_size=3),
    max_leaves=8,
)


@settings(max_examples=50)
@given(MESSAGES)
def test_protobuf_text_is_read_as_it_was_written(message: dict[str, Any]) -> None:
    assert _plain(parse(render(message))) == _plain(message)


def _plain(value: Any) -> Any:
    """`true` without quotes is a boolean, however it came there."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return {"true": True, "false": False}.get(value, value) if isinstance(value, Word) else value


@pytest.mark.parametrize("text", ["a: ${b}", "a {", "a [", ": 1", 'a: "b', "a: ]"])
def test_what_is_no_protobuf_text_is_refused(text: str) -> None:
    with pytest.raises(PbtxtError):
        parse(text)


# --- the loader -------------------------------------------------------------------------------------------------------

LLMAPI = """
import helpers, triton_python_backend_utils as pb_utils

class TritonPythonModel:
    output_dtype = object

    def _create_response(self, request_output, output_config):
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("text_output", ["so far"]),
                                                          pb_utils.Tensor("finish_reason", ["length"])])
"""


class Tensor:
    def __init__(self, name: str, values: Any) -> None:
        self._name, self.values = name, values

    def name(self) -> str:
        return self._name


class Response:
    def __init__(self, output_tensors: list[Tensor]) -> None:
        self._tensors = output_tensors

    def output_tensors(self) -> list[Tensor]:
        return self._tensors


def test_the_loader_has_each_event_say_what_is_new_and_count_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few lines stand where NVIDIA's model is: it could not be run where this was written."""
    (tmp_path / "model.py").write_text(LLMAPI)
    (tmp_path / "helpers.py").write_text("")
    utils = types.ModuleType("triton_python_backend_utils")
    utils.Tensor, utils.InferenceResponse = Tensor, Response  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "triton_python_backend_utils", utils)
    monkeypatch.setenv("LLMAPI_MODEL", str(tmp_path))
    monkeypatch.setattr(sys, "path", [*sys.path])
    space: dict[str, Any] = {"__name__": "model"}
    exec(repository({}, model="m")[f"{BACKEND}/1/model.py"], space)
    output = types.SimpleNamespace(text_diff=" far", token_ids_diff=[7, 8])
    asked = types.SimpleNamespace(outputs=[output], prompt_token_ids=[1, 2, 3])
    response = space["TritonPythonModel"]()._create_response(asked, {})
    found = {tensor.name(): tensor.values for tensor in response.output_tensors()}
    assert found["text_output"][0] == b" far"
    assert (found["num_input_tokens"].tolist(), found["num_output_tokens"].tolist()) == ([3], [2])
    assert found["num_output_tokens"].dtype == np.int32
    assert found["finish_reason"] == ["length"]


def test_the_loader_says_where_it_looked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LLMAPI_MODEL", str(tmp_path / "nowhere"))
    monkeypatch.setattr(sys, "path", [*sys.path])
    with pytest.raises(ImportError, match="set LLMAPI_MODEL"):
        exec(repository({}, model="m")[f"{BACKEND}/1/model.py"], {})
