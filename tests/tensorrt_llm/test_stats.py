"""The JSON page of `/metrics` empties itself when read; figures add up over reads."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.engines.tensorrt_llm.stats import IterationStats


def iteration(**changes: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "numActiveRequests": 5,
        "numQueuedRequests": 2,
        "numNewActiveRequests": 1,
        "newActiveRequestsQueueLatencyMS": 250.0,
        "numCompletedRequests": 1,
        "kvCacheStats": {"usedNumBlocks": 25, "maxNumBlocks": 100, "reusedBlocks": 7, "missedBlocks": 3},
        "inflightBatchingStats": {
            "numScheduledRequests": 3, "numCtxTokens": 100, "numGenRequests": 2, "numPausedRequests": 0,
        },
    }  # fmt: skip
    return {**fields, **changes}


def test_counts_add_up_and_gauges_are_the_last() -> None:
    stats = IterationStats()
    stats.take(json.dumps([iteration(), iteration()]))
    later = {**iteration()["kvCacheStats"], "usedNumBlocks": 50}
    found = stats.take(json.dumps([iteration(kvCacheStats=later)]))
    assert found["trtllm:completed_requests_total"] == 3
    assert found["trtllm:kv_cache_usage_ratio"] == 0.5
    assert found["trtllm:running_requests"] == 3
    assert found["trtllm:waiting_requests"] == 4  # two in the queue, two active ones outside the batch
    assert found["trtllm:queue_seconds_sum"] == pytest.approx(0.75)
    assert (found["trtllm:iteration_tokens_sum"], found["trtllm:iteration_tokens_count"]) == (306, 3)
    assert found["trtllm:reused_blocks_total"] == 7


def test_pauses_are_counted_when_they_begin() -> None:
    stats = IterationStats()
    batch = iteration()["inflightBatchingStats"]
    paused = [iteration(inflightBatchingStats={**batch, "numPausedRequests": n}) for n in (0, 2, 2, 1, 3)]
    assert stats.take(json.dumps(paused))["trtllm:paused_requests_total"] == 4


@given(
    st.one_of(st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists).map(json.dumps))
)
def test_any_page_is_survived(page: str) -> None:
    IterationStats().take(page)


@given(st.dictionaries(st.sampled_from(sorted(iteration())), st.none() | st.text() | st.lists(st.integers())))
def test_fields_of_another_kind_are_no_figures(changes: dict[str, Any]) -> None:
    found = IterationStats().take(json.dumps([iteration(**changes)]))
    assert all(isinstance(value, float) for value in found.values())


def test_an_empty_page_changes_nothing_at_once() -> None:
    stats = IterationStats()
    before = stats.take(json.dumps([iteration()]))
    assert stats.take("[]") == before


def test_an_engine_that_has_been_silent_for_a_while_is_idle() -> None:
    now = [0.0]
    stats = IterationStats(clock=lambda: now[0])
    stats.take(json.dumps([iteration()]))
    now[0] = 0.9
    assert stats.take("[]")["trtllm:running_requests"] == 3
    now[0] = 2.0
    idle = stats.take("[]")
    assert (idle["trtllm:running_requests"], idle["trtllm:waiting_requests"]) == (0, 0)
    assert stats.take(json.dumps([iteration()]))["trtllm:running_requests"] == 3
    now[0] = 2.9
    assert stats.take("[]")["trtllm:running_requests"] == 3
