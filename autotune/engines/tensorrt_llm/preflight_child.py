"""Runs in TensorRT-LLM's own Python: asks `TorchLlmArgs` whether it takes the options of a candidate.

In: JSON lines on stdin, `{"model": …, "options": {…}}`. Out: as engines/vllm/preflight_child.py, whose loop it uses.
File-checked only: `TorchLlmArgs` of 1.2 to 1.4rc is a pydantic model whose validators need no GPU, the dtype's apart.
"""

from __future__ import annotations

import importlib
import runpy
from pathlib import Path
from typing import Any

LOOP = Path(__file__).resolve().parents[1] / "vllm" / "preflight_child.py"
SETTINGS = ("max_batch_size", "max_num_tokens", "max_seq_len", "tensor_parallel_size", "pipeline_parallel_size",
            "enable_chunked_prefill", "stream_interval", "num_postprocess_workers")  # fmt: skip


class TensorRtLlm:
    """What is needed of the installed TensorRT-LLM. Raises ImportError or AttributeError where it moved elsewhere."""

    def __init__(self) -> None:
        self.args = importlib.import_module("tensorrt_llm.llmapi.llm_args").TorchLlmArgs

    def settings(self, question: dict[str, Any]) -> dict[str, Any]:
        """Return the settings that the options come to; raises what TorchLlmArgs raises."""
        config = self.args(model=question["model"], **question["options"])
        found = {name: getattr(config, name, None) for name in SETTINGS}
        return {name: value for name, value in found.items() if isinstance(value, (bool, int, float, str))}


if __name__ == "__main__":
    runpy.run_path(str(LOOP))["main"](TensorRtLlm)
