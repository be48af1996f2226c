"""Servers that are not like vLLM: what they refuse is left out, and only that; what they don't tell is noted."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.errors import InputError
from autotune.load import Dialect, negotiate, run_level
from autotune.load.body import renderer
from autotune.load.dialect import Feature
from autotune.load.negotiation import find
from autotune.records.trial import Endpoint, RequestPlan, RequestRecord
from tests.load.levels import level, request
from tests.load.scripted import DONE, HEAD, LAST_CHUNK, Received, ScriptedServer, Step, chunk, event, token

CHAT = RequestPlan(index=0, at_s=None, output_tokens=3, messages=({"role": "user", "content": "hi"},))
SERVER = Endpoint(host="127.0.0.1", port=1, model_name="tiny")
DOUBTS = (Feature.MIN_TOKENS, Feature.IGNORE_EOS, Feature.STREAM_OPTIONS, Feature.TEMPERATURE, Feature.PROMPT_IDS)


def decode(ids: Sequence[int]) -> str:
    return " ".join(f"w{number}" for number in ids)


def body_of(plan: RequestPlan, dialect: Dialect) -> dict[str, Any]:
    body = renderer(SERVER, "n", dialect)(plan).partition(b"\r\n\r\n")[2]
    return dict(json.loads(body))


def has(body: dict[str, Any], feature: Feature) -> bool:
    return isinstance(body.get("prompt"), list) if feature is Feature.PROMPT_IDS else feature.value in body


class Picky:
    """Answers like a server that refuses `features`, in the words that `message` gives for those it met."""

    def __init__(self, features: set[Feature], message: Callable[[list[Feature]], str], status: int = 400) -> None:
        self._features = features
        self._message = message
        self._status = status
        self.asked = 0

    def __call__(self, plan: RequestPlan, dialect: Dialect) -> RequestRecord:
        self.asked += 1
        body = body_of(plan, dialect)
        if met := [feature for feature in Feature if feature in self._features and has(body, feature)]:
            error = f"HTTP {self._status}: {self._message(met)}"
            return RequestRecord(index=0, scheduled_s=None, sent_s=0.0, asked_output_tokens=3, status=400, error=error)
        tokens = 3 if "stream_options" in body else None
        return RequestRecord(
            index=0,
            scheduled_s=None,
            sent_s=0.0,
            asked_output_tokens=3,
            status=200,
            chunk_s=(0.1, 0.2, 0.3),
            output_tokens=tokens,
        )


def first_by_name(met: list[Feature]) -> str:
    """FastAPI with pydantic's `extra: forbid`; a wrong type for the prompt."""
    if met[0] is Feature.PROMPT_IDS:
        return "{'loc': ('body', 'prompt'), 'msg': 'Input should be a valid string'}"
    return f"{{'type': 'extra_forbidden', 'loc': ('body', '{met[0]}'), 'msg': 'Extra inputs are not permitted'}}"


def everything_echoed(_: list[Feature]) -> str:
    return f"bad request: {', '.join(Feature)} (input: a list of integers)"


def nothing_said(_: list[Feature]) -> str:
    return "Bad Request"


def found(server: Picky, plan: RequestPlan | None = None) -> Dialect:
    plan = plan or request(0)
    return find(lambda dialect: server(plan, dialect), plan, decode)


@pytest.mark.parametrize("message", [first_by_name, everything_echoed, nothing_said])
@given(st.sets(st.sampled_from(DOUBTS)))
def test_what_a_server_refuses_is_left_out_and_nothing_else(
    message: Callable[[list[Feature]], str], features: set[Feature]
) -> None:
    server = Picky(features, message)
    dialect = found(server)
    assert dialect.lacks == features
    assert dialect.usage is (Feature.STREAM_OPTIONS not in features)
    assert server.asked <= 1 + 2 * len(DOUBTS)
    if message is first_by_name:
        assert server.asked == 1 + len(features)


def test_a_server_that_takes_all_is_asked_once_and_has_no_notes() -> None:
    server = Picky(set(), nothing_said)
    assert found(server) == Dialect()
    assert server.asked == 1
    assert Dialect().notes == ()


def test_one_that_refuses_the_request_itself_gives_the_plain_dialect() -> None:
    def refuses(dialect: Dialect) -> RequestRecord:
        error = "HTTP 400: 'max_tokens' or 'max_completion_tokens' is too large: 9000"
        return RequestRecord(index=0, scheduled_s=None, sent_s=0.0, asked_output_tokens=3, status=400, error=error)

    assert find(refuses, request(0), decode) == Dialect()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (None, "connection refused"),
        (401, "HTTP 401: no key for min_tokens"),
        (500, "HTTP 500: "),
        (200, "server error: EngineCore died"),
        (None, "no end within 60 s"),
    ],
)
def test_other_failures_are_left_to_the_first_real_request(status: int | None, error: str) -> None:
    asked: list[Dialect] = []

    def fails(dialect: Dialect) -> RequestRecord:
        asked.append(dialect)
        return RequestRecord(index=0, scheduled_s=None, sent_s=0.0, asked_output_tokens=3, status=status, error=error)

    assert find(fails, request(0), decode) == Dialect()
    assert len(asked) == 1


def test_a_chat_that_wants_the_newer_name_of_the_limit() -> None:
    server = Picky({Feature.MAX_TOKENS}, lambda _: "Unsupported parameter: use 'max_completion_tokens' instead.")
    dialect = found(server, CHAT)
    assert dialect.lacks == {Feature.MAX_TOKENS}
    assert body_of(CHAT, dialect)["max_completion_tokens"] == 3
    assert server.asked == 2


def test_prompts_become_text_by_the_plan_or_by_the_tokenizer() -> None:
    textual = Dialect(decode=decode).without(Feature.PROMPT_IDS)
    assert body_of(request(0), textual)["prompt"] == "w200 w201 w300"
    planned = RequestPlan(index=0, at_s=None, output_tokens=1, prompt_ids=(1,), prompt_text="as planned")
    assert body_of(planned, textual)["prompt"] == "as planned"
    with pytest.raises(InputError, match="no tokenizer to write them as text"):
        body_of(request(0), Dialect().without(Feature.PROMPT_IDS))


def test_without_a_tokenizer_ids_are_not_given_up() -> None:
    server = Picky({Feature.PROMPT_IDS}, first_by_name)
    assert find(lambda dialect: server(request(0), dialect), request(0), None) == Dialect()


def test_every_lack_has_a_note() -> None:
    dialect = Dialect(lacks=frozenset(Feature), usage=False, chunk_usage=True)
    assert len(dialect.notes) == len(Feature) + 2
    assert "server: it takes no stream_options" in dialect.notes


def pydantic(received: Received) -> Iterator[Step]:
    """Takes neither token ids nor stream_options, so counts no tokens either."""
    if "stream_options" in received.body or not isinstance(received.body["prompt"], str):
        field = "stream_options" if "stream_options" in received.body else "prompt"
        said = json.dumps({"detail": [{"loc": ["body", field], "msg": "not a valid string"}]}).encode()
        yield b"HTTP/1.1 422 Unprocessable\r\ncontent-length: %d\r\n\r\n" % len(said) + said
    else:
        yield HEAD + chunk(token()) + chunk(token()) + chunk(token(finish="length")) + chunk(DONE) + LAST_CHUNK


@pytest.mark.integration
def test_a_level_in_the_dialect_of_its_server() -> None:
    with ScriptedServer(pydantic) as server:
        dialect = negotiate(server.endpoint, request(0), decode=decode)
        record = run_level(server.endpoint, level([request(i) for i in range(5)], concurrency=2), dialect=dialect)
    assert dialect == Dialect(lacks=frozenset({Feature.STREAM_OPTIONS, Feature.PROMPT_IDS}), usage=False)
    assert [(one.error, one.output_tokens) for one in record.requests] == [(None, 3)] * 5
    assert record.notes == dialect.notes
    assert len(dialect.notes) == 3


def two_a_chunk(received: Received) -> Iterator[Step]:
    """An engine that speculates: events of two tokens and one, counted with each event on demand."""
    counted = received.body["stream_options"].get("continuous_usage_stats")
    yield HEAD
    for total, finish in ((2, None), (4, None), (5, "length")):
        usage = {"prompt_tokens": 3, "completion_tokens": total} if counted else None
        yield chunk(event({"choices": [{"text": "ab", "finish_reason": finish}], "usage": usage}))
    yield chunk(event({"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 5}}) + DONE) + LAST_CHUNK


@pytest.mark.integration
def test_tokens_of_each_event_are_asked_for_where_events_carry_several() -> None:
    with ScriptedServer(two_a_chunk) as server:
        dialect = negotiate(server.endpoint, request(0))
        record = run_level(server.endpoint, level([request(0)], concurrency=1), dialect=dialect)
    assert dialect == Dialect(chunk_usage=True)
    (one,) = record.requests
    assert (one.chunk_tokens, one.output_tokens) == ((2, 2, 1), 5)
    first, second = (after - before for before, after in zip(one.chunk_s, one.chunk_s[1:], strict=False))
    assert one.itl_ms == pytest.approx((first * 1e3 / 2, second * 1e3))
