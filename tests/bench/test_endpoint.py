"""An URL becomes a server: what is accepted, what is discovered, and what is said when it is neither."""

from __future__ import annotations

import pytest

from autotune.engines.base import Server
from autotune.engines.endpoint import address, connect, parse_url
from autotune.engines.net import fresh_port
from autotune.errors import EnvironmentFault, InputError
from autotune.records.trial import Fault, Phase
from tests.bench.serving import models, serving


@pytest.mark.parametrize(
    ("url", "base"),
    [
        ("http://h:8000", "http://h:8000/v1"),
        ("http://h:8000/", "http://h:8000/v1"),
        ("http://h:8000/v1/", "http://h:8000/v1"),
        ("h:8000", "http://h:8000/v1"),
        ("localhost", "http://localhost:80/v1"),
        ("https://h", "https://h:443/v1"),
        ("HTTPS://H/llm", "https://h:443/llm/v1"),
        ("https://h/api/v3", "https://h:443/api/v3"),
        ("http://h:1/v1/chat/completions", "http://h:1/v1"),
        ("http://h:1/v1/completions/", "http://h:1/v1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
        ("http://h/vllm", "http://h:80/vllm/v1"),
    ],
)
def test_an_url_names_host_port_and_base_path(url: str, base: str) -> None:
    assert address(parse_url(url)) == base
    assert address(parse_url(address(parse_url(url)))) == base


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("ftp://h", "ftp"),
        ("http://", "no host"),
        ("", "no host"),
        ("http://h:70000", "no URL"),
        ("http://h:port", "no URL"),
        ("http://[::1", "no URL"),
        ("http://user:secret@h", "--api-key-env"),
        ("http://h?key=1", "query"),
    ],
)
def test_what_is_no_base_url_is_refused(url: str, word: str) -> None:
    with pytest.raises(InputError, match=word) as refused:
        parse_url(url)
    assert "secret" not in str(refused.value)


def test_the_only_model_is_found_with_all_that_vllm_tells() -> None:
    pages = {
        "/v1/models": models("m", max_model_len=4096, root="org/m"),
        "/version": (200, '{"version": "0.32.0"}'),
        "/metrics": (200, 'vllm:num_requests_running{model_name="m"} 3.0\n'),
    }
    with serving(pages) as served:
        server = connect(served.url)
        assert isinstance(server, Server)
        assert server.endpoint.model_name == "m"
        assert (server.max_model_len, server.version, server.simulated) == (4096, "0.32.0", False)
        assert server.vocab_size is None
        assert server.metrics() == {"vllm:num_requests_running": 3.0}
        assert server.failure(Phase.LOAD) is None


def test_a_server_without_metrics_or_version_will_do() -> None:
    with serving({"/v1/models": models("m")}) as served:
        server = connect(served.url)
        assert (server.max_model_len, server.version, dict(server.metrics())) == (None, None, {})


def test_of_several_models_one_must_be_named() -> None:
    with serving({"/v1/models": models("a", "b")}) as served:
        with pytest.raises(InputError, match="2 models: a, b"):
            connect(served.url)
        assert connect(served.url, model="b").endpoint.model_name == "b"


def test_a_model_that_is_not_there_is_refused_with_those_that_are() -> None:
    with serving({"/v1/models": models("a")}) as served, pytest.raises(InputError, match=r"'x'[\s\S]*it serves: a"):
        connect(served.url, model="x")


def test_a_named_model_needs_no_list() -> None:
    with serving({}) as served:
        assert connect(served.url, model="m").endpoint.model_name == "m"


@pytest.mark.parametrize(
    "page", [(404, "no"), (200, "<html>"), (200, "[]"), (200, '{"data": [{"name": 1}]}'), (200, '{"data": 3}')]
)
def test_a_server_that_speaks_something_else_is_told_apart(page: tuple[int, str]) -> None:
    with serving({"/v1/models": page}) as served, pytest.raises(EnvironmentFault, match="not as an OpenAI API"):
        connect(served.url)


def test_a_key_goes_with_every_question_and_is_never_shown() -> None:
    with serving({"/v1/models": models("m")}) as served:
        server = connect(served.url, api_key="sk-secret")
        assert served.seen["/v1/models"] == "Bearer sk-secret"
        assert "sk-secret" not in repr(server)


def test_a_server_that_wants_a_key_says_how_to_give_it() -> None:
    with serving({"/v1/models": (401, "{}")}) as served:
        with pytest.raises(EnvironmentFault, match=r"wants a key[\s\S]*--api-key-env"):
            connect(served.url)
        with pytest.raises(EnvironmentFault, match="refuses this key"):
            connect(served.url, api_key="wrong")


def test_nobody_there_is_told_with_the_address() -> None:
    port = fresh_port()
    with pytest.raises(EnvironmentFault, match=rf"127\.0\.0\.1:{port}/v1 can't be reached: Connection refused"):
        connect(f"http://127.0.0.1:{port}")


def test_tls_where_there_is_none_is_told_so() -> None:
    with serving({}) as served, pytest.raises(EnvironmentFault, match="use http://"):
        connect(served.url.replace("http", "https"))


def test_a_server_that_has_gone_is_the_environments_failure() -> None:
    with serving({"/v1/models": models("m")}) as served:
        server = connect(served.url)
    failure = server.failure(Phase.LOAD)
    assert failure is not None
    assert (failure.fault, failure.phase) == (Fault.ENVIRONMENT, Phase.LOAD)
    assert served.url in failure.cause
