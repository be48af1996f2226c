"""Conversations: turns that hold what was said before."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from autotune.errors import InputError
from autotune.load import build_level
from autotune.records.spec import (
    FixedLength,
    LoadSpec,
    PrefixSpec,
    SessionSpec,
    UniformLength,
    WorkloadSpec,
)
from autotune.records.trial import LevelPlan, RequestPlan

TALK = SessionSpec(turns=UniformLength(low=1, high=5), think_s=2.0)


def chat(sessions: SessionSpec = TALK, prefix: PrefixSpec | None = None) -> WorkloadSpec:
    return WorkloadSpec(
        input_tokens=UniformLength(low=5, high=30),
        output_tokens=UniformLength(low=4, high=20),
        prefix=prefix,
        sessions=sessions,
    )


def conversations(plan: LevelPlan, count: int) -> list[list[RequestPlan]]:
    """The first `count` requests as conversations; the last may be cut."""
    found: list[list[RequestPlan]] = []
    for request in plan.requests[:count]:
        if request.after is None:
            found.append([])
        found[-1].append(request)
    return found


def ids(request: RequestPlan) -> tuple[int, ...]:
    assert request.prompt_ids is not None
    return request.prompt_ids


def test_a_turn_begins_with_the_prompt_before_it_and_goes_on_with_an_answer_of_its_length() -> None:
    plan = build_level(chat(prefix=PrefixSpec(tokens=16, groups=2)), LoadSpec(concurrency=3), seed=1)
    for turns in conversations(plan, 200):
        for before, turn in pairwise(turns):
            assert turn.after == before.index == turn.index - 1
            assert ids(turn)[: len(ids(before))] == ids(before)
            new = len(ids(turn)) - len(ids(before)) - before.output_tokens
            assert 5 <= new <= 30
            assert turn.prefix_tokens == len(ids(before))
            assert turn.prefix_group == before.prefix_group or before.after is None


def test_the_shared_prefix_stands_before_the_first_turn() -> None:
    plan = build_level(chat(prefix=PrefixSpec(tokens=16, groups=2)), LoadSpec(concurrency=3), seed=1)
    firsts = [turns[0] for turns in conversations(plan, 200)]
    assert {first.prefix_tokens for first in firsts} == {16}
    assert len({ids(first)[:16] for first in firsts}) == 2
    assert all(16 + 5 <= len(ids(first)) <= 16 + 30 for first in firsts)


def test_conversations_have_their_number_of_turns_and_share_nothing() -> None:
    found = conversations(build_level(chat(), LoadSpec(concurrency=3), seed=1), 3000)[:-1]
    counts = np.bincount([len(turns) for turns in found], minlength=6)[1:]
    assert stats.chisquare(counts).pvalue > 0.01
    assert len({ids(turns[0])[:5] for turns in found}) == len(found)


def test_thinking_is_exponential_and_only_between_turns() -> None:
    plan = build_level(chat(), LoadSpec(concurrency=3), seed=1)
    requests = plan.requests[:2000]
    thought = [request.think_s for request in requests if request.after is not None]
    assert stats.kstest(thought, stats.expon(scale=2.0).cdf).pvalue > 0.01
    assert {request.think_s for request in requests if request.after is None} == {0.0}


def test_a_request_is_the_same_whenever_it_is_asked_for() -> None:
    one, other = (build_level(chat(), LoadSpec(concurrency=3), seed=1).requests for _ in range(2))
    assert one[500] == other[500]
    assert [one[index] for index in (7, 3, 700, 4)] == list(map(other[:701].__getitem__, (7, 3, 700, 4)))


def test_an_open_loop_starts_so_many_conversations_that_their_requests_make_up_the_rate() -> None:
    load = LoadSpec(poisson_rps=6.0, duration_s=400.0, warmup_s=0.0)
    plan = build_level(chat(), load, seed=1)
    assert len(plan.requests) / 400 == pytest.approx(6.0, rel=0.1)
    starts = [turns[0].at_s for turns in conversations(plan, len(plan.requests))]
    assert len(starts) / 400 == pytest.approx(2.0, rel=0.1)
    assert starts == sorted(starts, key=lambda at_s: at_s or 0.0)
    assert all(request.at_s is None for request in plan.requests if request.after is not None)
    assert plan.offered_rps == 6.0


def test_a_warm_up_shorter_than_conversations_is_told() -> None:
    short, long = (
        build_level(chat(), LoadSpec(poisson_rps=6.0, warmup_s=warmup_s), seed=1).notes for warmup_s in (3.0, 4.0)
    )
    assert short[0].startswith("users think for 4 s of a conversation on average, the warm-up is 3 s")
    assert long == ()


def test_max_requests_leaves_conversations_whole() -> None:
    load = LoadSpec(poisson_rps=6.0, duration_s=400.0, warmup_s=0.0)
    whole = build_level(chat(), load, seed=1)
    for most in range(50, 56):
        cut = build_level(chat(), LoadSpec(poisson_rps=6.0, duration_s=400.0, warmup_s=0.0, max_requests=most), seed=1)
        left_out = whole.requests[len(cut.requests)]
        assert most - 5 < len(cut.requests) <= most
        assert left_out.after is None
        assert cut.duration_s == left_out.at_s


def test_the_longest_conversation_must_fit_the_engine() -> None:
    spec = chat(SessionSpec(turns=FixedLength(tokens=3)), PrefixSpec(tokens=50))
    longest = 50 + 2 * (30 + 20) + 30
    assert spec.longest_tokens == (longest, 20)
    assert build_level(spec, LoadSpec(concurrency=1), seed=1, max_total_tokens=longest + 20).requests[0].index == 0
    with pytest.raises(InputError, match=rf"{longest} [+] 20 = {longest + 20} tokens, the engine holds {longest + 19}"):
        build_level(spec, LoadSpec(concurrency=1), seed=1, max_total_tokens=longest + 19)


# --- of a dataset -----------------------------------------------------------------------------------------------------


def dataset(folder: Path, turns: int = 3) -> str:
    said = [{"from": who, "value": f"{who} {turn}"} for turn in range(turns) for who in ("human", "gpt")]
    file = folder / "talk.jsonl"
    file.write_text(json.dumps({"id": "a", "conversations": said}) + "\n")
    return str(file)


def replayed(path: str, most: int) -> WorkloadSpec:
    sessions = SessionSpec(turns=FixedLength(tokens=most), think_s=1.0)
    return WorkloadSpec(dataset=path, output_tokens=FixedLength(tokens=9), sessions=sessions)


def test_a_dataset_s_conversation_is_replayed_turn_by_turn_with_its_own_answers(tmp_path: Path) -> None:
    plan = build_level(replayed(dataset(tmp_path), 9), LoadSpec(concurrency=1), seed=1)
    turns = plan.requests[:3]
    assert [[m["content"] for m in turn.messages or ()] for turn in turns] == [
        ["human 0"],
        ["human 0", "gpt 0", "human 1"],
        ["human 0", "gpt 0", "human 1", "gpt 1", "human 2"],
    ]
    assert [turn.after for turn in plan.requests[:4]] == [None, 0, 1, None]
    assert all(turn.think_s > 0 for turn in turns[1:])


def test_turns_bound_a_dataset_s_conversations(tmp_path: Path) -> None:
    plan = build_level(replayed(dataset(tmp_path), 2), LoadSpec(poisson_rps=4.0, warmup_s=0.0), seed=1)
    assert [request.after for request in plan.requests[:4]] == [None, 0, None, 2]
    assert len(plan.requests) == pytest.approx(240, rel=0.3)
