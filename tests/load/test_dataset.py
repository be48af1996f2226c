"""Datasets of conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.load import build_level
from autotune.records.spec import FixedLength, LoadSpec, WorkloadSpec
from autotune.records.trial import LevelPlan


def say(text: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text}], **more}


def write(path: Path, *rows: object) -> str:
    file = path / "chats.jsonl"
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return str(file)


def build(dataset: str, *, output_tokens: int | None = 32, seed: int = 1) -> LevelPlan:
    length = None if output_tokens is None else FixedLength(tokens=output_tokens)
    spec = WorkloadSpec(dataset=dataset, output_tokens=length)
    return build_level(spec, LoadSpec(concurrency=1), seed=seed)


def texts(plan: LevelPlan, count: int) -> list[str]:
    return [request.messages[0]["content"] for request in plan.requests[0:count] if request.messages]


def test_a_row_passes_through(tmp_path: Path) -> None:
    row = say("héllo", model="lora", max_tokens=5, extra_body={"top_p": 0.5})
    request = build(write(tmp_path, row)).requests[0]
    assert request.messages == tuple(row["messages"])
    assert (request.model, request.output_tokens, request.extra_body) == ("lora", 5, {"top_p": 0.5})
    assert (request.prompt_ids, request.prompt_tokens) == (None, None)


def test_output_tokens_hold_where_the_row_has_no_max_tokens(tmp_path: Path) -> None:
    assert build(write(tmp_path, say("a"))).requests[0].output_tokens == 32


def test_rows_come_shuffled_by_the_seed_and_again_when_used_up(tmp_path: Path) -> None:
    names = [f"row {number}" for number in range(30)]
    path = write(tmp_path, *(say(name) for name in names))
    one, same, other = (texts(build(path, seed=seed), 60) for seed in (1, 1, 2))
    assert one == same != other
    assert sorted(one[:30]) == sorted(one[30:]) == sorted(names)
    assert one[:30] != one[30:]


def test_blank_lines_are_no_rows(tmp_path: Path) -> None:
    assert texts(build(write(tmp_path, "", say("a"), "  ")), 2) == ["a", "a"]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ([], "a list where an object belongs"),
        ({}, "`messages` must be a list with at least one message"),
        ({"messages": []}, "`messages` must be a list with at least one message"),
        ({"messages": ["hi"]}, "a message must be an object with a `role`"),
        ({"messages": [{"content": "hi"}]}, "a message must be an object with a `role`"),
        (say("a", max_tokens=0), "`max_tokens` must be a whole number from 1 on, not 0"),
        (say("a", max_tokens=True), "`max_tokens` must be a whole number from 1 on, not True"),
        (say("a", model=3), "`model` must be text, not 3"),
        (say("a", extra_body=[]), "`extra_body` must be an object"),
        (say("a", extra_body={"stream": False}), "`extra_body` may not set `stream`"),
        (say("a", temperature=1), "unknown key `temperature`; request options belong under `extra_body`"),
    ],
)
def test_a_bad_row_is_named_by_file_and_line(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path, say("fine"), row)
    with pytest.raises(InputError) as caught:
        build(path)
    assert caught.value.message.startswith(f"{path}:2: ")
    assert message in caught.value.message


def test_the_first_twenty_bad_lines_are_shown(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        build(write(tmp_path, *["no"] * 25))
    lines = caught.value.message.splitlines()
    assert len(lines) == 21
    assert lines[19].split(":")[1] == "20"
    assert lines[20] == "… and 5 more bad lines"


def test_a_row_needs_max_tokens_when_the_workload_has_no_output_tokens(tmp_path: Path) -> None:
    path = write(tmp_path, say("a", max_tokens=3), say("b"))
    with pytest.raises(InputError, match=r":2: no `max_tokens`"):
        build(path, output_tokens=None)


def test_an_empty_or_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the file holds no requests"):
        build(write(tmp_path))
    with pytest.raises(InputError, match="can't read the dataset: No such file"):
        build(str(tmp_path / "none.jsonl"))


# --- ShareGPT and plain prompts ---------------------------------------------------------------------------------------


def shared(*said: tuple[str, str]) -> dict[str, Any]:
    return {"id": "x_0", "conversations": [{"from": who, "value": text} for who, text in said], "lang": "en"}


TALK = shared(("gpt", "cut off"), ("system", "be kind"), ("human", "one"), ("gpt", "1"), ("human", "two"), ("gpt", "2"))


def test_of_a_sharegpt_conversation_a_single_request_is_the_first_question(tmp_path: Path) -> None:
    request = build(write(tmp_path, TALK)).requests[0]
    assert request.messages == ({"role": "system", "content": "be kind"}, {"role": "user", "content": "one"})
    assert request.output_tokens == 32


@pytest.mark.parametrize("indent", [None, 2])
def test_sharegpt_s_list_in_one_file_is_read(tmp_path: Path, indent: int | None) -> None:
    file = tmp_path / "sharegpt.json"
    rows = [shared(("human", f"question {number}"), ("gpt", "a")) for number in range(9)]
    file.write_text(json.dumps(rows, indent=indent))
    assert sorted(texts(build(str(file)), 9)) == [f"question {number}" for number in range(9)]


def test_plain_prompts_stand_a_line_each_or_under_a_key(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("\ufefffirst {\n\n  second\r\n")
    assert sorted(texts(build(str(file)), 2)) == ["first {", "second"]
    path = write(tmp_path, {"prompt": "third", "max_tokens": 4})
    assert texts(build(path), 1) == ["third"]
    assert build(path).requests[0].output_tokens == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (shared(), "`conversations` has no question"),
        (shared(("gpt", "a")), "`conversations` has no question"),
        (shared(("robot", "a")), "a turn must have `from` (human, gpt or system) and `value`"),
        ({"conversations": [{"from": "human"}]}, "a turn must have `from` (human, gpt or system) and `value`"),
        ({"conversations": "a"}, "`conversations` must be a list"),
        ({"prompt": ""}, "`prompt` must be text"),
        ({"prompt": "a", "n": 2}, "unknown key `n`"),
        ({"prompt": "cut \ud83d"}, "text with half a character at 4: '\\ud83d'"),
        (shared(("human", "\udc00")), "text with half a character at 0"),
    ],
)
def test_a_few_bad_rows_are_skipped_and_told(tmp_path: Path, row: object, message: str) -> None:
    path = write(tmp_path, *[TALK] * 10, row)
    plan = build(path)
    assert len(plan.notes) == 1
    assert plan.notes[0].startswith(f"1 of 11 rows (0.091) were skipped, the first: {path}:11: {message}")
    assert all(texts(plan, 30))
    with pytest.raises(InputError):
        build(write(tmp_path, *[TALK] * 8, row))


def test_a_list_that_is_cut_off_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "sharegpt.json"
    file.write_text(json.dumps([TALK] * 3)[:-9])
    with pytest.raises(InputError, match=r"sharegpt\.json: not JSON"):
        build(str(file))


def test_a_file_that_changed_is_read_again(tmp_path: Path) -> None:
    assert texts(build(write(tmp_path, say("a"))), 1) == ["a"]
    assert texts(build(write(tmp_path, say("another"))), 1) == ["another"]
