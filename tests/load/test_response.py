"""Responses: what a stream says, however it is cut, and whatever a server sends."""

from __future__ import annotations

import json
from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.load.response import Parsed, RawResponse, parse
from tests.load.scripted import DONE, delta, event, token, usage


def raw(body: bytes, cuts: list[int] | None = None, status: int | None = 200, error: str | None = None) -> RawResponse:
    """A response that came in reads ending at `cuts`, the read i at time i."""
    ends = sorted({*(cuts or ()), len(body)})
    return RawResponse(
        status=status, body=body, read_s=[float(i) for i in range(len(ends))], read_ends=ends, error=error
    )


COMPLETION = token("a") + token("b", "length") + usage(7, 2) + DONE
CHAT = (
    delta(role="assistant", content="")
    + delta(reasoning_content="hm")
    + delta(content="é")
    + delta("stop")
    + usage(9, 2, cached=4)
    + DONE
)


def test_a_completion() -> None:
    assert parse(raw(COMPLETION)) == Parsed(
        chunk_s=[0.0, 0.0], prompt_tokens=7, output_tokens=2, cached_tokens=None, finish_reason="length", error=None
    )


def test_a_chat_counts_reasoning_but_neither_its_opening_nor_its_closing_event() -> None:
    assert parse(raw(CHAT)) == Parsed(
        chunk_s=[0.0, 0.0], prompt_tokens=9, output_tokens=2, cached_tokens=4, finish_reason="stop", error=None
    )


@given(st.sampled_from([COMPLETION, CHAT, COMPLETION.replace(b"\n", b"\r\n"), CHAT.replace(b"\n", b"\r")]), st.data())
def test_any_cutting_of_a_stream_gives_the_same_record(body: bytes, data: st.DataObject) -> None:
    """The times are those of the reads that brought the last byte of each token's event."""
    cuts = data.draw(st.lists(st.integers(1, len(body)), max_size=40))
    response = raw(body, cuts)
    whole = parse(raw(body))
    bytewise = parse(raw(body, list(range(1, len(body) + 1))))
    parsed = parse(response)
    assert parsed.chunk_s == [bisect_left(response.read_ends, int(end) + 1) for end in bytewise.chunk_s]
    parsed.chunk_s = whole.chunk_s
    assert parsed == whole
    assert whole.error is None


def test_a_token_has_the_time_at_which_its_event_was_complete() -> None:
    first = len(token("a"))
    assert parse(raw(COMPLETION, [first - 1, first, first + 5])).chunk_s == [1.0, 3.0]


def test_comments_other_fields_and_empty_events_are_passed_over() -> None:
    noise = b": keep-alive\n\n\n\nevent: message\nid: 3\nretry: 5\n\n"
    assert parse(raw(noise + COMPLETION.replace(b"data: ", b"id: 1\ndata:"))) == parse(raw(COMPLETION))


def test_data_of_several_lines_and_a_byte_order_mark() -> None:
    spread = token("a").replace(b'{"choices"', b'{\ndata: "choices"')
    assert parse(raw(b"\xef\xbb\xbf" + spread + token("b", "length") + usage(7, 2) + DONE)) == parse(raw(COMPLETION))


def test_usage_with_every_chunk_counts_the_last() -> None:
    body = b"".join(
        event({"choices": [{"text": "a"}], "usage": {"prompt_tokens": 5, "completion_tokens": n}}) for n in (2, 4, 6)
    )
    parsed = parse(raw(body + DONE))
    assert (parsed.prompt_tokens, parsed.output_tokens, len(parsed.chunk_s)) == (5, 6, 3)


def test_tokens_of_each_event_are_known_only_if_all_events_have_them() -> None:
    counted = [event({"choices": [{"text": "a"}], "usage": {"completion_tokens": n}}) for n in (2, 3, 7)]
    assert parse(raw(b"".join(counted) + DONE)).chunk_tokens == [2, 1, 4]
    assert parse(raw(counted[0] + token("b") + counted[2] + DONE)).chunk_tokens == []
    assert parse(raw(token("b") + usage(3, 1) + DONE)).chunk_tokens == []


@pytest.mark.parametrize(
    "said", [{"reasoning": "x"}, {"tool_calls": [{"index": 0}]}, {"role": "assistant", "content": "x"}]
)
def test_reasoning_tool_calls_and_text_beside_a_role_are_tokens(said: dict[str, object]) -> None:
    assert len(parse(raw(delta(**said) + DONE)).chunk_s) == 1


def test_steps_without_visible_text_are_tokens() -> None:
    """Special tokens and halves of a character are decoded to nothing, but took their time."""
    assert len(parse(raw(token("") + token("a") + token("", "stop") + DONE)).chunk_s) == 2
    assert len(parse(raw(delta(content="") + delta(content="a") + DONE)).chunk_s) == 2


def test_a_sole_closing_event_is_a_token_if_the_server_counted_one() -> None:
    assert parse(raw(token("", "length") + usage(3, 1) + DONE)).chunk_s == [0.0]
    assert parse(raw(token("", "stop") + usage(3, 0) + DONE)).error == "no tokens"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (b"", "no tokens"),
        (DONE, "no tokens"),
        (delta(role="assistant", content="") + DONE, "no tokens"),
        (token("a") + token("b"), "truncated"),
        (
            token("a") + event({"error": {"message": "EngineCore\ndied", "code": 500}}) + DONE,
            "server error: EngineCore died",
        ),
        (token("a") + event({"object": "error", "message": "gone"}) + DONE, "server error: gone"),
        (event({"error": "plain"}), "server error: plain"),
        (token("a") + event(b"{oops") + DONE, "bad event: {oops"),
        (event(b"[" * 100_000), "bad event: " + "[" * 300),
        (event(b"3"), "bad event: 3"),
        (b'{"choices": [{"text": "all at once"}]}', 'not an event stream: {"choices": [{"text": "all at once"}]}'),
    ],
)
def test_what_is_no_success(body: bytes, error: str) -> None:
    assert parse(raw(body)).error == error


def test_tokens_before_an_error_keep_their_times() -> None:
    assert parse(raw(token("a") + event({"error": "x"}))).chunk_s == [0.0]


@pytest.mark.parametrize("end", [token("a", "length"), token("a") + DONE, token("a") + DONE.rstrip()])
@pytest.mark.parametrize("lost", [None, "connection closed early"])
def test_done_or_a_finish_reason_is_a_proper_end_even_if_the_connection_was_lost_then(
    end: bytes, lost: str | None
) -> None:
    assert parse(raw(end, error=lost)).error is None


def test_a_lost_connection_is_the_error_of_what_had_not_ended() -> None:
    assert parse(raw(token("a"), error="connection reset by peer")).error == "connection reset by peer"
    assert parse(raw(b"", status=None, error="connection refused")).error == "connection refused"


def test_a_cut_request_keeps_its_tokens_and_stays_cut() -> None:
    parsed = parse(raw(COMPLETION, error="cut"))
    assert (parsed.error, len(parsed.chunk_s), parsed.output_tokens) == ("cut", 2, 2)


def test_another_status_is_an_error_with_the_beginning_of_the_body() -> None:
    assert parse(raw(b'{"error":\n "max_tokens is too large"}', status=400)).error == (
        'HTTP 400: {"error": "max_tokens is too large"}'
    )
    assert len(parse(raw(b"x" * 5000, status=500)).error or "") < 400


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["choices", "text", "delta", "content", "usage", "error", "finish_reason", "object"]), inner
        )
    ),
    max_leaves=8,
)
PIECES = st.one_of(
    st.binary(max_size=30),
    st.sampled_from([b"data: ", b"data:", b"\n\n", b"\r\n", b"\r", b"[DONE]", b": x\n", token(), DONE, usage(1, -1)]),
    ODD.map(lambda value: event(json.dumps(value).encode())),
    ODD.map(lambda value: event({"choices": [value]})),
    ODD.map(lambda value: event({"choices": [{"delta": value, "finish_reason": value}], "usage": value})),
    ODD.map(
        lambda value: event({"choices": [], "usage": {"completion_tokens": value, "prompt_tokens_details": value}})
    ),
)


@given(st.lists(PIECES, max_size=12).map(b"".join), st.data())
def test_a_hostile_body_gives_a_record_and_never_an_exception(body: bytes, data: st.DataObject) -> None:
    cuts = data.draw(st.lists(st.integers(0, len(body)), max_size=5))
    response = raw(body, cuts, status=data.draw(st.sampled_from([200, 503])))
    parsed = parse(response)
    assert len(parsed.chunk_s) <= body.count(b"data:")
    assert parsed.chunk_s == sorted(parsed.chunk_s)
    assert parsed.error is not None or parsed.chunk_s
    for count in (parsed.prompt_tokens, parsed.output_tokens, parsed.cached_tokens):
        assert count is None or (type(count) is int and count >= 0)
