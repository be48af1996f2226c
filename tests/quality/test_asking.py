"""How servers are asked, on real sockets: the stand-ins of vLLM and TensorRT-LLM, and servers that misbehave."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from autotune import quality
from autotune.quality.answers import LEAST_LOGPROB
from autotune.records.quality import AskedBy, QualitySpec, QualityStatus, ReferenceAnswers
from autotune.records.trial import Endpoint
from tests.simulated.running import MODEL, Server, launched, wait_until

pytestmark = pytest.mark.integration

PROMPTS = tuple(f"The {n} sentence of the set goes on until it stops in the middle of" for n in range(10))
Reply = Callable[[dict[str, Any]], tuple[int, str]]


@dataclass
class Scripted:
    """A server that answers as `reply` says; `asked` are the bodies that came."""

    reply: Reply
    asked: list[dict[str, Any]] = field(default_factory=list)
    endpoint: Endpoint = field(default_factory=lambda: Endpoint(host="127.0.0.1", port=0, model_name="m"))


@contextmanager
def scripted(reply: Reply) -> Iterator[Scripted]:
    script = Scripted(reply)

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            script.asked.append(body)
            status, text = script.reply(body)
            self.send_response(status)
            self.send_header("Content-Length", str(len(text.encode())))
            self.end_headers()
            self.wfile.write(text.encode()[: None if status != 299 else len(text) // 2])

        def log_message(self, *_args: object) -> None:
            """Not shown."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        script.endpoint = Endpoint(host="127.0.0.1", port=server.server_address[1], model_name="m")
        try:
            yield script
        finally:
            server.shutdown()


def completion(body: dict[str, Any], *, logprob: str = "-0.5") -> tuple[int, str]:
    """Two tokens of answer to a prompt of three, by whichever way was asked."""
    likely = f"{logprob}, {logprob}"
    choice = (
        f'"text": "a b", "finish_reason": "length", "logprobs": {{"tokens": ["a", " b"], "token_logprobs": [{likely}]}}'
    )
    if "prompt_logprobs" in body:
        told = f'{{"7": {{"logprob": {logprob}}}}}'
        choice += f', "prompt_logprobs": [null, {told}, {told}], "token_ids": [1, 2]'
    usage = '"usage": {"prompt_tokens": 3, "completion_tokens": 2}'
    return 200, f'{{"choices": [{{{choice}}}], {usage}}}'


def ask(endpoint: Endpoint) -> ReferenceAnswers:
    return quality.ask_reference(endpoint, PROMPTS, trial=0, answer_tokens=8, settings={})


@contextmanager
def simulated(*arguments: str, module: str = "autotune.engines.simulated") -> Iterator[Endpoint]:
    with launched(*arguments, module=module) as server:
        _wait(server)
        name = server.get("/v1/models").json["data"][0]["id"]
        yield Endpoint(host="127.0.0.1", port=server.port, model_name=name)


def _wait(server: Server) -> None:
    wait_until(lambda: server.status("/health") == 200)


@pytest.mark.parametrize(
    ("module", "asked_by"),
    [
        ("autotune.engines.simulated", AskedBy.PROMPT_LOGPROBS),
        ("autotune.engines.simulated.trtllm", AskedBy.ANSWER_LOGPROBS),
    ],
)
def test_each_stand_in_is_asked_in_the_fullest_way_that_it_knows(module: str, asked_by: AskedBy) -> None:
    with simulated("--sim-time-scale", "100", module=module) as endpoint:
        kept = ask(endpoint)
        answers, again = quality.ask_candidate(endpoint, kept)
    assert (kept.asked_by, again) == (asked_by, asked_by)
    assert len(kept.base) == len(PROMPTS)
    assert all(len(answer.tokens) == 8 for answer in kept.base)
    assert all((answer.prompt_logprobs is not None) == (asked_by is AskedBy.PROMPT_LOGPROBS) for answer in kept.base)
    found = quality.judge(kept, answers, again, QualitySpec(perplexity_ratio=1.0, token_agreement=1.0))
    assert (found.status, found.equal_ratio) == (QualityStatus.PASSED, 1.0)


def test_both_ways_to_the_prompts_log_probabilities_tell_the_same() -> None:
    """vLLM takes its own field and OpenAI's older one."""

    def passed_on(body: dict[str, Any]) -> tuple[int, str]:
        if "prompt_logprobs" in body:
            return 400, "unknown field"
        reply = server.post("/v1/completions", body | {"model": MODEL})
        return reply.status, reply.text

    with launched("--sim-time-scale", "100") as server:
        _wait(server)
        direct = ask(Endpoint(host="127.0.0.1", port=server.port, model_name=MODEL))
        with scripted(passed_on) as proxy:
            echoed = ask(proxy.endpoint)
    assert (direct.asked_by, echoed.asked_by) == (AskedBy.PROMPT_LOGPROBS, AskedBy.ECHO)
    assert [a.prompt_logprobs for a in direct.base] == [a.prompt_logprobs for a in echoed.base]
    assert [a.logprobs for a in direct.base] == [a.logprobs for a in echoed.base]
    assert [a.text for a in direct.base] == [a.text for a in echoed.base]


def test_a_server_that_ignores_echo_is_not_believed() -> None:
    """llama.cpp's tells log-probabilities of the answer alone, whatever was asked."""

    def reply(body: dict[str, Any]) -> tuple[int, str]:
        return completion({name: value for name, value in body.items() if name != "prompt_logprobs"})

    with scripted(reply) as server:
        assert ask(server.endpoint).asked_by is AskedBy.ANSWER_LOGPROBS


def test_a_server_that_tells_only_text_is_compared_by_characters() -> None:
    with scripted(lambda body: (200, '{"choices": [{"text": "so it goes"}]}')) as server:
        kept = ask(server.endpoint)
    assert kept.asked_by is AskedBy.TEXT
    assert kept.base[0].tokens == tuple("so it goes")


def test_prompts_too_long_for_the_reference_are_left_out_and_said() -> None:
    def reply(body: dict[str, Any]) -> tuple[int, str]:
        return (400, "too long") if "The 3 " in body["prompt"] else completion(body)

    with scripted(reply) as server:
        kept = ask(server.endpoint)
        assert quality.ask_candidate(server.endpoint, kept)[1] is AskedBy.PROMPT_LOGPROBS
    assert len(kept.prompts) == len(PROMPTS) - 1
    assert kept.notes == ("1 prompts were refused by the reference and left out: HTTP 400: too long",)


def test_a_prompt_that_only_the_candidate_refuses_is_named() -> None:
    with scripted(completion) as server:
        kept = ask(server.endpoint)
        server.reply = lambda body: (400, "too long") if "The 3 " in body["prompt"] else completion(body)
        with pytest.raises(quality.Unanswered, match="prompt 3, which the reference answered: HTTP 400: too long"):
            quality.ask_candidate(server.endpoint, kept)


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "null"])
def test_log_probabilities_that_are_no_numbers_count_as_the_worst(number: str) -> None:
    """Weights that were damaged may give NaN, which Python's JSON writes as it is."""
    with scripted(completion) as server:
        kept = ask(server.endpoint)
        server.reply = lambda body: completion(body, logprob=number if number != "null" else "-1e9")
        found = quality.judge(kept, *quality.ask_candidate(server.endpoint, kept), QualitySpec())
    assert found.status is QualityStatus.FAILED
    assert found.mean_logprob_difference == pytest.approx(LEAST_LOGPROB + 0.5)


@pytest.mark.parametrize(
    ("status", "text", "said"),
    [
        (500, "Internal Server Error", "HTTP 500: Internal Server Error"),
        (404, '{"detail": "Not Found"}', "HTTP 404"),
        (200, "<html>", "the answer can't be read"),
        (200, "[]", "the answer can't be read"),
        (200, '{"choices": []}', "the answer can't be read"),
        (200, '{"choices": [{"text": null}]}', "the answer can't be read"),
        (299, "half of it is missing", "the connection broke twice"),
    ],
)
def test_what_is_no_answer_is_said(status: int, text: str, said: str) -> None:
    with scripted(lambda body: (status, text)) as server, pytest.raises(quality.Unanswered) as error:
        ask(server.endpoint)
    assert said in error.value.why


def test_a_connection_that_breaks_once_is_tried_again() -> None:
    broken = threading.Event()

    def reply(body: dict[str, Any]) -> tuple[int, str]:
        if not broken.is_set():
            broken.set()
            return 299, "half of it is missing"
        return completion(body)

    with scripted(reply) as server:
        assert len(ask(server.endpoint).base) == len(PROMPTS)


def test_nobody_listening_is_said() -> None:
    with scripted(completion) as server:
        endpoint = server.endpoint
    with pytest.raises(quality.Unanswered, match=r"the connection broke twice: .*refused"):
        ask(endpoint)


def test_answers_are_asked_greedily_and_the_key_is_sent() -> None:
    with scripted(completion) as server:
        ask(server.endpoint)
    assert {(body["temperature"], body["max_tokens"], body["model"]) for body in server.asked} == {(0, 8, "m")}
    with launched("--api-key", "secret", "--sim-time-scale", "100") as server_with_key:
        _wait(server_with_key)
        port = server_with_key.port
        with pytest.raises(quality.Unanswered, match="HTTP 401"):
            ask(Endpoint(host="127.0.0.1", port=port, model_name=MODEL))
        assert ask(Endpoint(host="127.0.0.1", port=port, model_name=MODEL, api_key="secret")).base
