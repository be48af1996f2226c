"""The real vLLM that `make vllm-env` installs. Each start takes half a minute on two cores: start it rarely."""

from __future__ import annotations

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def vllm_venv() -> Path:
    """The environment's directory; skips where there is none."""
    venv = ROOT / ".venv-vllm"
    if not (venv / ".ready").exists():
        pytest.skip("no real vLLM here: run `make vllm-env` first")
    return venv
