"""scripts/trtllm_fields.py reads a pydantic model; a small one stands where TorchLlmArgs is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts/trtllm_fields.py"
ARGS = """
from typing import Literal, Optional
from pydantic import BaseModel, Field
class KvCacheConfig(BaseModel):
    dtype: Literal["auto", "fp8"] = "auto"
    free_gpu_memory_fraction: Optional[float] = Field(0.9, ge=0, le=1)
class TorchLlmArgs(BaseModel):
    model: str
    max_batch_size: Optional[int] = Field(None, ge=1)
    kv_cache_config: KvCacheConfig = KvCacheConfig()
    batch_sizes: Optional[list[int]] = None
"""


@pytest.mark.integration
def test_fields_are_told_as_fields_json_has_them(tmp_path: Path) -> None:
    package = tmp_path / "tensorrt_llm" / "llmapi"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").write_text("__version__ = '1.9'")
    (package / "__init__.py").write_text("")
    (package / "llm_args.py").write_text(ARGS)
    env = {**os.environ, "PYTHONPATH": str(tmp_path)}
    subprocess.run([sys.executable, str(SCRIPT), str(tmp_path / "out.json")], check=True, env=env)
    told = json.loads((tmp_path / "out.json").read_text())
    assert told["about"]["tensorrt_llm"] == "1.9"
    assert told["fields"] == {
        "batch_sizes": {"type": "list[int]", "null": True},
        "kv_cache_config": {"type": "object"},
        "kv_cache_config.dtype": {"type": "str", "default": "auto", "choices": ["auto", "fp8"]},
        "kv_cache_config.free_gpu_memory_fraction": {"type": "float", "null": True, "default": 0.9, "ge": 0, "le": 1},
        "max_batch_size": {"type": "int", "null": True, "ge": 1},
    }
