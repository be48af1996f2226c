"""What autotune's client relies on in the OpenAI API, of the real vLLM and of the simulated one alike."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

from tests.contract.engines import MAX_MODEL_LEN, VOCAB_SIZE, Live
from tests.engines.children import wait_until
from tests.simulated.running import Events, Reply

CHAT = [{"role": "user", "content": "Say something about the sea."}]


def prompt(engine: Live, tokens: int) -> list[int] | str:
    """Plain tokens that no other request has sent, as the engine takes them."""
    return engine.speaks.prompt([random.randrange(200, VOCAB_SIZE - 200) for _ in range(tokens)])


def body(engine: Live, **fields: Any) -> dict[str, Any]:
    return {"model": engine.server.endpoint.model_name, "temperature": 0, **fields}


def exactly(tokens: int) -> dict[str, Any]:
    """Fields that make an answer this long, whatever the model says."""
    return {"max_tokens": tokens, "min_tokens": tokens, "ignore_eos": True}


def stream(engine: Live, path: str = "/v1/completions", **fields: Any) -> Events:
    return engine.client.stream_body(path, body(engine, stream_options={"include_usage": True}, **fields))


def refusal(engine: Live, reply: Reply) -> str:
    """What a refusal says."""
    said = engine.speaks.message(reply.json)
    assert said
    return said


# --- about the server -------------------------------------------------------------------------------------------------


def test_it_is_healthy_and_says_what_it_serves(engine: Live) -> None:
    assert engine.client.get(engine.speaks.health_path).status == 200
    cards = {card["id"]: card for card in engine.client.get("/v1/models").json["data"]}
    card = cards[engine.server.endpoint.model_name]
    assert Path(engine.model).name in card["id"] or not engine.speaks.lists_model
    assert card.get("max_model_len", MAX_MODEL_LEN) == MAX_MODEL_LEN


def test_its_version_tells_a_simulated_engine_from_a_real_one(engine: Live) -> None:
    version = engine.client.get("/version").json["version"]
    assert version.startswith(engine.speaks.version)
    assert version.endswith("simulated") == engine.contender.simulated


# --- answers ----------------------------------------------------------------------------------------------------------


def test_a_stream_has_a_chunk_a_token_then_its_usage_then_the_end(engine: Live) -> None:
    events = stream(engine, prompt=prompt(engine, 37), **exactly(12))
    assert (events.status, events.done, events.errors) == (200, True, [])
    assert len(events.choices) == 12
    assert [choice["finish_reason"] for choice in events.choices] == [None] * 11 + [engine.speaks.finish]
    assert all(choice["index"] == 0 for choice in events.choices)
    assert events.bodies[-1]["choices"] == []
    usage = events.bodies[-1]["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (37, 12, 49)


def test_a_whole_answer_counts_as_a_stream_does(engine: Live) -> None:
    reply = engine.client.post("/v1/completions", body(engine, prompt=prompt(engine, 23), **exactly(9)))
    assert reply.status == 200
    usage, [choice] = reply.json["usage"], reply.json["choices"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (23, 9)
    assert choice["finish_reason"] == engine.speaks.finish
    assert choice["text"]


def test_the_same_prompt_gets_the_same_answer_streamed_or_whole(engine: Live) -> None:
    ids = prompt(engine, 20)
    whole = engine.client.post("/v1/completions", body(engine, prompt=ids, **exactly(8))).json["choices"][0]["text"]
    assert "".join(stream(engine, prompt=ids, **exactly(8)).texts) == whole


def test_a_chat_streams_a_role_then_content_then_usage(engine: Live) -> None:
    events = stream(engine, "/v1/chat/completions", messages=CHAT, **exactly(10))
    assert (events.status, events.done, events.errors) == (200, True, [])
    assert events.choices[0]["delta"]["role"] == "assistant"
    assert "".join(text for text in events.texts if text)
    assert events.choices[-1]["finish_reason"] == engine.speaks.finish
    usage = events.bodies[-1]["usage"]
    assert usage["completion_tokens"] == 10
    assert 5 <= usage["prompt_tokens"] <= 60  # the template's own tokens are the tokenizer's affair


def test_a_whole_chat_counts_as_a_streamed_one_does(engine: Live) -> None:
    fields = {"messages": CHAT, **exactly(6)}
    reply = engine.client.post("/v1/chat/completions", body(engine, **fields))
    streamed = stream(engine, "/v1/chat/completions", **fields).bodies[-1]["usage"]
    assert reply.status == 200
    assert reply.json["choices"][0]["message"]["content"]
    assert {name: reply.json["usage"][name] for name in ("prompt_tokens", "completion_tokens")} == {
        name: streamed[name] for name in ("prompt_tokens", "completion_tokens")
    }


# --- refusals ---------------------------------------------------------------------------------------------------------


def test_an_unknown_model_is_not_found(engine: Live) -> None:
    reply = engine.client.post(
        "/v1/completions", {"model": "nobody/nothing", "prompt": prompt(engine, 1), "max_tokens": 1}
    )
    assert reply.status in (400, 404)
    assert "nobody/nothing" in refusal(engine, reply)


def test_malformed_json_is_a_bad_request(engine: Live) -> None:
    reply = engine.client.post("/v1/completions", '{"prompt": [1, 2')
    assert reply.status == 400
    assert refusal(engine, reply)


def test_a_prompt_beyond_the_context_is_a_bad_request_that_names_the_limit(engine: Live) -> None:
    for stream_it in (False, True):
        fields = body(engine, prompt=prompt(engine, MAX_MODEL_LEN + 88), max_tokens=1, stream=stream_it)
        reply = engine.client.post("/v1/completions", fields)
        assert reply.status == 400
        assert str(MAX_MODEL_LEN) in refusal(engine, reply)


# --- aborts -----------------------------------------------------------------------------------------------------------


def test_a_stream_that_its_client_leaves_is_dropped_and_the_next_is_served(engine: Live) -> None:
    before = engine.server.metrics()
    with engine.client.streaming(
        "/v1/completions", body(engine, prompt=prompt(engine, 16), **exactly(480))
    ) as response:
        lines = [response.readline() for _ in range(3)]
    assert lines[0].startswith(b"data: ")
    assert stream(engine, prompt=prompt(engine, 16), **exactly(4)).bodies[-1]["usage"]["completion_tokens"] == 4
    if (running := engine.speaks.running) is not None:
        wait_until(lambda: engine.server.metrics().get(running) == 0, "the end of the abandoned request")
    if (generated := engine.speaks.generated) is not None:
        assert 4 < engine.server.metrics()[generated] - before[generated] < 400
