"""Loads TensorRT-LLM's own model for Triton, `triton_backend/all_models/llmapi`, as it is in NVIDIA's image.

Written by autotune, since that model is TensorRT-LLM's and fits its release. It reads the model.yaml beside this file.
LLMAPI_MODEL names the folder that holds its model.py and helpers.py where it is elsewhere.
"""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("LLMAPI_MODEL", "/app/all_models/llmapi/tensorrt_llm/1"))

sys.path.insert(0, str(FOLDER))  # it imports `helpers` from beside itself
_spec = importlib.util.spec_from_file_location("llmapi_model", FOLDER / "model.py")
if _spec is None or _spec.loader is None or not (FOLDER / "model.py").is_file():
    raise ImportError(f"there is no model.py of TensorRT-LLM's llmapi backend in {FOLDER}: set LLMAPI_MODEL")
_module = importlib.util.module_from_spec(_spec)
sys.modules["llmapi_model"] = _module
_spec.loader.exec_module(_module)


class TritonPythonModel(_module.TritonPythonModel):  # type: ignore[misc, name-defined]
    """As NVIDIA's, whose every event repeats the text so far and counts no tokens: Triton's OpenAI frontend takes each
    for what is new, and reports usage where both counts are there."""

    def _create_response(self, request_output: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401
        response = super()._create_response(request_output, *args, **kwargs)
        utils, output = _module.pb_utils, request_output.outputs[0]
        others = [tensor for tensor in response.output_tensors() if tensor.name() != "text_output"]
        text = np.asarray([output.text_diff.encode()], dtype=self.output_dtype)
        counts = {"num_input_tokens": request_output.prompt_token_ids, "num_output_tokens": output.token_ids_diff}
        counted = [utils.Tensor(name, np.asarray([len(ids)], dtype=np.int32)) for name, ids in counts.items()]
        return utils.InferenceResponse(output_tensors=[utils.Tensor("text_output", text), *counted, *others])
