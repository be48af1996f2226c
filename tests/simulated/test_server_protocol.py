"""A well-behaved simulated server speaks the protocol that a client of vLLM relies on."""

from __future__ import annotations

import random
import re
import signal
import statistics
import time
from typing import Any

import pytest

from tests.simulated.conftest import MAX_MODEL_LEN
from tests.simulated.running import MODEL, Server, launched, serving, wait_until

pytestmark = pytest.mark.integration

USAGE = {"stream_options": {"include_usage": True}}


def fresh_prompt(tokens: int) -> list[int]:
    """A prompt that no other test has sent."""
    return [random.randrange(100_000) for _ in range(tokens)]


# --- what is asked about the server -----------------------------------------------------------------------------------


def test_it_is_healthy_and_says_what_it_serves(server: Server) -> None:
    assert server.get("/health").status == server.get("/ping").status == 200
    [card] = server.get("/v1/models").json["data"]
    assert (card["id"], card["root"], card["max_model_len"]) == ("m", MODEL, MAX_MODEL_LEN)


def test_it_says_that_it_is_simulated(server: Server) -> None:
    version = server.get("/version").json
    assert version == {"version": "0.32.0+simulated", "simulated": True}
    server.wait_for_line("SIMULATED ENGINE")


def test_the_log_shows_resolved_settings_where_vllm_shows_them(server: Server) -> None:
    head = r"\(EngineCore pid=\d+\) INFO \d\d-\d\d [\d:]{8} \[core.py:133\] "
    config = server.wait_for_line(head + "Initializing a V1 LLM engine").string
    assert "max_seq_len=512, " in config
    assert "enable_prefix_caching=True, enable_chunked_prefill=True, " in config
    server.wait_for_line(r"non-default args: \{'model_tag': .*'max_num_seqs': 8")
    size = server.wait_for_line(r"GPU KV cache size: ([\d,]+) tokens, Maximum concurrency for 512 tokens per request: ")
    label = re.search(r'kv_cache_size_tokens="(\d+)"', server.get("/metrics").text)
    assert label
    assert int(size[1].replace(",", "")) == int(label[1])


def test_flags_that_are_not_modelled_are_named() -> None:
    with serving("--max-model-len", "512", "--cpu-offload-gb", "2") as server:
        server.wait_for_line("WARNING .*accepts, but does not model: cpu_offload_gb")


def test_tokens_and_text_convert_without_loss(server: Server) -> None:
    tokens = fresh_prompt(50)
    text = server.post("/detokenize", {"tokens": tokens}).json["prompt"]
    assert server.post("/tokenize", {"prompt": text}).json["tokens"] == tokens


# --- completions ------------------------------------------------------------------------------------------------------


def test_usage_counts_the_ids_that_were_sent(server: Server) -> None:
    body = server.complete(fresh_prompt(37), 11).json
    assert body["usage"] == {"prompt_tokens": 37, "completion_tokens": 11, "total_tokens": 48}
    assert body["choices"][0]["finish_reason"] == "length"


def test_a_stream_says_what_the_whole_answer_says(server: Server) -> None:
    prompt = fresh_prompt(20)
    whole = server.complete(prompt, 9).json["choices"][0]["text"]
    events = server.stream(prompt, 9, **USAGE)
    assert events.done
    assert "".join(events.texts) == whole
    assert len(events.texts) == 9
    assert [choice["finish_reason"] for choice in events.choices] == [None] * 8 + ["length"]
    assert events.bodies[-1]["choices"] == []
    assert events.bodies[-1]["usage"]["completion_tokens"] == 9


def test_usage_comes_only_when_asked_for_and_continuously_when_asked_for(server: Server) -> None:
    assert all("usage" not in body for body in server.stream([1, 2], 3).bodies)
    options = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}
    counts = [body["usage"]["completion_tokens"] for body in server.stream([1, 2], 3, **options).bodies]
    assert counts == [1, 2, 3, 3]


def test_chat_opens_with_a_role_and_then_carries_content(server: Server) -> None:
    body = {"messages": [{"role": "user", "content": "Hello there"}], "max_tokens": 4, "ignore_eos": True, **USAGE}
    events = server.stream_body("/v1/chat/completions", body)
    assert events.choices[0]["delta"] == {"role": "assistant", "content": ""}
    whole = server.post("/v1/chat/completions", body).json
    assert "".join(events.texts) == whole["choices"][0]["message"]["content"]
    assert events.bodies[-1]["usage"] == whole["usage"]
    assert whole["object"] == "chat.completion"


def test_several_prompts_are_answered_in_one_stream(server: Server) -> None:
    prompts = [fresh_prompt(5), fresh_prompt(6)]
    events = server.stream(prompts, 4, **USAGE)
    for index, prompt in enumerate(prompts):
        text = "".join(choice["text"] for choice in events.choices if choice["index"] == index)
        assert text == server.complete(prompt, 4).json["choices"][0]["text"]
    assert events.bodies[-1]["usage"] == {"prompt_tokens": 11, "completion_tokens": 8, "total_tokens": 19}


def test_a_stop_string_ends_the_answer_before_it(server: Server) -> None:
    prompt = fresh_prompt(8)
    words = server.complete(prompt, 10).json["choices"][0]["text"].split()
    body = server.complete(prompt, 10, stop=[words[4]]).json
    assert body["choices"][0]["text"].split() == words[:4]
    assert body["choices"][0]["finish_reason"] == "stop"
    assert body["usage"]["completion_tokens"] == 5


def test_without_ignore_eos_an_answer_ends_by_itself_and_min_tokens_holds_it_open() -> None:
    with serving("--max-model-len", "1024", "--sim-time-scale", "50") as server:
        bodies = [server.complete([n], 900, ignore_eos=False).json for n in range(1, 5)]
        held = server.complete([1], 900, ignore_eos=False, min_tokens=900).json
    assert {body["choices"][0]["finish_reason"] for body in bodies} == {"stop"}
    assert len({body["usage"]["completion_tokens"] for body in bodies}) == 4
    assert held["usage"]["completion_tokens"] == 900


def test_output_is_cut_where_the_context_ends(server: Server) -> None:
    body = server.complete(fresh_prompt(MAX_MODEL_LEN - 10), 100).json
    assert body["usage"]["completion_tokens"] == 10


def test_logprobs_are_given_for_every_token(server: Server) -> None:
    logprobs = server.complete([1, 2], 3, logprobs=1).json["choices"][0]["logprobs"]
    assert len(logprobs["tokens"]) == len(logprobs["token_logprobs"]) == 3


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"prompt": [1], "model": "other"}, 404, "The model `other` does not exist."),
        ({"prompt": [1], "max_tokens": 513}, 400, "max_tokens=513 cannot be greater than max_model_len=512"),
        ({"prompt": [1] * 513}, 400, "maximum context length is 512 tokens. However, your prompt contains 513 input"),
        ({"prompt": [1], "max_tokens": 0}, 400, "max_tokens must be at least 1, got 0."),
        ({"prompt": []}, 400, "prompt"),
        ({"prompt": [10**7]}, 400, "out of vocabulary"),
        ({"prompt": [1], "n": 2}, 400, "n=1 only"),
        ({"prompt": [1], "max_tokens": "many"}, 400, "max_tokens must be an integer"),
        ("{", 400, "not JSON"),
    ],
)
def test_refusals_have_openais_shape_and_vllms_words(server: Server, body: Any, status: int, message: str) -> None:
    reply = server.post("/v1/completions", body)
    assert reply.status == status
    assert message in reply.json["error"]["message"]
    assert reply.json["error"]["code"] == status


# --- the engine behind it ---------------------------------------------------------------------------------------------


def test_counters_move_by_what_was_served(server: Server) -> None:
    names = ("prompt_tokens_total", "generation_tokens_total", "time_to_first_token_seconds_count")
    before = [server.metric(f"vllm:{name}") for name in names]
    finished = server.metric("vllm:request_success_total", finished_reason="length")
    server.stream(fresh_prompt(21), 6)
    after = [server.metric(f"vllm:{name}") for name in names]
    assert [new - old for new, old in zip(after, before, strict=True)] == [21, 6, 1]
    assert server.metric("vllm:request_success_total", finished_reason="length") == finished + 1


def test_a_repeated_prompt_hits_the_prefix_cache_by_whole_blocks(server: Server) -> None:
    prompt = fresh_prompt(100)
    server.complete(prompt, 1)
    hits = server.metric("vllm:prefix_cache_hits_total")
    server.complete(fresh_prompt(100), 1)
    assert server.metric("vllm:prefix_cache_hits_total") == hits, "another prompt hits nothing"
    server.complete([*prompt[:70], *fresh_prompt(30)], 1)
    assert server.metric("vllm:prefix_cache_hits_total") == hits + 64, "70 shared tokens are four blocks of 16"


def test_resetting_the_prefix_cache_forgets(server: Server) -> None:
    prompt = fresh_prompt(64)
    server.complete(prompt, 1)
    hits = server.metric("vllm:prefix_cache_hits_total")
    assert server.post("/reset_prefix_cache", {}).status == 200
    server.complete(prompt, 1)
    assert server.metric("vllm:prefix_cache_hits_total") == hits


def test_a_client_that_leaves_aborts_its_request(server: Server) -> None:
    aborted = server.metric("vllm:request_success_total", finished_reason="abort")
    with server.streaming("/v1/completions", {"prompt": [5, 6], "max_tokens": 500, "ignore_eos": True}) as response:
        assert response.readline().startswith(b"data: ")
        assert server.metric("vllm:num_requests_running") == 1
    wait_until(lambda: server.metric("vllm:request_success_total", finished_reason="abort") == aborted + 1)
    wait_until(lambda: server.metric("vllm:num_requests_running") == 0)


def test_tokens_come_at_the_models_pace_divided_by_the_time_scale() -> None:
    """An H100 decodes Llama-3.1-8B in about 7 ms: 16 GB of weights at 3.1 TB/s, plus attention and host time."""
    for scale in (0.25, 0.5):
        with serving("--max-model-len", "512", "--sim-time-scale", str(scale)) as slow:
            gap_ms = 1000 * statistics.median(slow.stream([1, 2], 20).gaps_s)
        assert 5.5 < gap_ms * scale < 9


def test_more_requests_than_sequences_wait(server: Server) -> None:
    prompts = [[n] for n in range(1, 13)]  # twelve in one request; eight may run
    with server.streaming("/v1/completions", {"prompt": prompts, "max_tokens": 100, "ignore_eos": True}) as response:
        assert response.readline().startswith(b"data: ")
        assert server.metric("vllm:num_requests_running") == 8
        assert server.metric("vllm:num_requests_waiting") == 4
        assert response.read().count(b'"length"') == 12


def test_stream_interval_sends_the_first_token_alone_and_then_packs(server: Server) -> None:
    del server
    with serving("--stream-interval", "4", "--sim-time-scale", "20", "--max-model-len", "512") as packed:
        assert [len(text.split()) for text in packed.stream([1], 10).texts] == [1, 4, 4, 1]


def test_cached_tokens_are_reported_on_demand() -> None:
    with serving("--enable-prompt-tokens-details", "--max-model-len", "512", "--sim-time-scale", "20") as server:
        prompt = fresh_prompt(100)
        first = server.complete(prompt, 1).json["usage"]
        second = server.stream(prompt, 1, **USAGE).bodies[-1]["usage"]
    assert first["prompt_tokens_details"] == {"cached_tokens": 0}
    assert second["prompt_tokens_details"] == {"cached_tokens": 96}


@pytest.mark.parametrize("how", [{"option": "secret-1"}, {"variable": "secret-1"}], ids=["option", "variable"])
def test_an_api_key_guards_the_api_but_not_health(how: dict[str, str]) -> None:
    option = ["--api-key", how["option"]] if "option" in how else []
    env = {"VLLM_API_KEY": how.get("variable", "secret-2")}  # of both, the option counts
    with serving(*option, "--max-model-len", "512", "--sim-time-scale", "20", env=env) as guarded:
        assert guarded.status("/health") == 200
        assert guarded.complete([1], 1).status == 401
        assert guarded.post("/v1/completions", {"prompt": [1]}, {"Authorization": "Bearer secret-2"}).status == 401
        reply = guarded.post("/v1/completions", {"prompt": [1]}, {"Authorization": "Bearer secret-1"})
        assert reply.status == 200


# --- starting and stopping --------------------------------------------------------------------------------------------


def test_it_is_healthy_soon_and_stops_with_0_leaving_streams_an_error_event() -> None:
    began_s = time.monotonic()
    with serving("--max-model-len", "4096") as server:
        assert time.monotonic() - began_s < 5, "1.5 s on a free core"
        with server.streaming("/v1/completions", {"prompt": [1], "max_tokens": 4000, "ignore_eos": True}) as response:
            assert response.readline().startswith(b"data: ")
            server.signal(signal.SIGTERM)
            rest = response.read()
        assert b'"error"' in rest
        assert rest.endswith(b"data: [DONE]\n\n")
        assert server.wait_exit() == 0


def test_sigterm_while_starting_ends_it() -> None:
    with launched("--max-model-len", "512", "--sim-startup-s", "60") as server:
        server.wait_for_line("Starting to load model")
        server.signal(signal.SIGTERM)
        assert server.wait_exit() == 1


def test_a_taken_port_is_refused_as_vllm_does(server: Server) -> None:
    with launched(port=server.port) as second:
        assert second.wait_exit() == 1
        second.wait_for_line(r"OSError: \[Errno 98\] Address already in use")


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("--max-num-batched-tokens", "32", "--max-num-seqs", "64"), r"max_num_batched_tokens \(32\) must be greater"),
        (("--tensor-parallel-size", "3"), r"attention heads \(32\) must be divisible by tensor parallel size \(3\)"),
        (("--gpu-memory-utilization", "0.2"), "No available memory for the cache blocks"),
        (("--sim-gpu", "h1000"), "unknown simulated GPU 'h1000'"),
    ],
)
def test_a_configuration_that_can_not_run_ends_with_1_and_its_cause(arguments: tuple[str, ...], line: str) -> None:
    with launched(*arguments) as server:
        assert server.wait_exit() == 1
        server.wait_for_line(line)


def test_an_unknown_model_ends_with_1_and_the_known_ones() -> None:
    with launched(model="/models/nope") as server:
        assert server.wait_exit() == 1
        server.wait_for_line("/models/nope is not a local folder and is not a valid model identifier.*Llama-3.1-8B")
