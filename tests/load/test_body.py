"""Requests as bytes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.errors import InputError
from autotune.load.body import renderer
from autotune.load.dialect import Dialect
from autotune.records.trial import Endpoint, RequestPlan

SERVER = Endpoint(host="127.0.0.1", port=8000, model_name="tiny")
PROMPT = RequestPlan(index=3, at_s=None, output_tokens=5, prompt_ids=(7, 8, 9), prompt_tokens=3)
CHAT = RequestPlan(
    index=4,
    at_s=None,
    output_tokens=6,
    messages=({"role": "user", "content": "héllo"},),
    model="lora",
    extra_body={"temperature": 0.7, "min_tokens": 2},
)


def read(data: bytes) -> tuple[str, dict[str, str], dict[str, Any]]:
    head, _, body = data.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    assert int(headers["Content-Length"]) == len(body)
    return first, headers, json.loads(body)


def test_a_completion_forces_its_exact_length() -> None:
    first, headers, body = read(renderer(SERVER, "n", Dialect())(PROMPT))
    assert first == "POST /v1/completions HTTP/1.1"
    assert headers["Host"] == "127.0.0.1:8000"
    assert headers["X-Request-Id"] == "autotune-n-3"
    assert "Authorization" not in headers
    assert body == {
        "model": "tiny",
        "prompt": [7, 8, 9],
        "min_tokens": 5,
        "ignore_eos": True,
        "max_tokens": 5,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_a_chat_ends_where_the_model_ends_it_and_takes_the_rows_options() -> None:
    first, _, body = read(renderer(SERVER, "n", Dialect())(CHAT))
    assert first == "POST /v1/chat/completions HTTP/1.1"
    assert body == {
        "model": "lora",
        "messages": [{"role": "user", "content": "héllo"}],
        "max_tokens": 6,
        "temperature": 0.7,
        "min_tokens": 2,
        "stream": True,
        "stream_options": {"include_usage": True},
    }


def test_key_base_path_and_an_ipv6_host() -> None:
    server = Endpoint(host="::1", port=80, model_name="m", base_path="/serve/v1/", api_key="sk-1")
    first, headers, _ = read(renderer(server, "n", Dialect())(PROMPT))
    assert first == "POST /serve/v1/completions HTTP/1.1"
    assert (headers["Host"], headers["Authorization"]) == ("[::1]:80", "Bearer sk-1")


def test_a_key_cannot_smuggle_headers_and_is_not_shown() -> None:
    with pytest.raises(InputError, match="api_key has characters") as caught:
        renderer(Endpoint(host="h", port=1, model_name="m", api_key="sk\r\nX: y"), "n", Dialect())
    assert "sk" not in str(caught.value)
