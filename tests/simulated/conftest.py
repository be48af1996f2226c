"""One well-behaved server for all tests that only ask."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulated.running import Server, serving

MAX_MODEL_LEN = 512


@pytest.fixture(scope="session")
def server() -> Iterator[Server]:
    with serving("--max-model-len", str(MAX_MODEL_LEN), "--served-model-name", "m", "--max-num-seqs", "8") as server:
        yield server
