"""One launch of each engine for the whole suite: a real one takes half a minute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.contract.engines import REAL, SIMULATED, TENSORRT_LLM_STAND_IN, TRITON_STAND_IN, Contender, Live, live

CONTENDERS = [
    pytest.param(REAL, marks=pytest.mark.vllm, id="vllm"),
    pytest.param(SIMULATED, marks=pytest.mark.integration, id="simulated"),
    pytest.param(TENSORRT_LLM_STAND_IN, marks=pytest.mark.integration, id="tensorrt_llm"),
    pytest.param(TRITON_STAND_IN, marks=pytest.mark.integration, id="triton"),
]


@pytest.fixture(scope="session", params=CONTENDERS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """A launched engine, shared by every test; its teardown asserts that the stop left nothing."""
    contender: Contender = request.param
    with live(contender, tmp_path_factory.mktemp(contender.name)) as launched:
        yield launched
