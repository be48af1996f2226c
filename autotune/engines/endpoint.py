"""A server that somebody else runs, as an URL: found, asked what it serves, and never started nor stopped by us."""

# ruff: noqa: D102  the protocol in engines/base.py documents the methods of `EndpointServer`

from __future__ import annotations

import contextlib
import http.client
import json
import os
import ssl
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import SplitResult, urlsplit

from autotune.engines.net import read_page
from autotune.engines.served import vocab_size
from autotune.engines.vllm.logs import metric_sums, resolved_settings
from autotune.errors import EnvironmentFault, InputError
from autotune.records.trial import Cleanup, Endpoint, Failure, Fault, Outcome, Phase

ASK_TIMEOUT_S = 10.0
_ROUTES = ("/chat/completions", "/completions", "/models")  # what people paste with the base URL
_SHOWN_MODELS = 8
_HOW_KEYS = "name the variable that holds the key: --api-key-env NAME, in a study engine.api_key_env"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a GET came back with."""

    status: int
    text: str

    def json(self) -> dict[str, Any]:
        """The body as a JSON object; {} when it is none."""
        try:
            data = json.loads(self.text)
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """A model that the server lists. `root` is where its weights are from, where the server tells (vLLM does)."""

    name: str
    root: str | None = None
    max_model_len: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointServer:
    """Follows `engines.base.Server`. It "has ended" when its address refuses connections."""

    endpoint: Endpoint
    card: Card
    version: str | None = None
    simulated: bool = False
    startup_s: float = 0.0  # it ran before we came
    argv: tuple[str, ...] = ()
    cleanup: Cleanup | None = None

    @property
    def vocab_size(self) -> int | None:
        return vocab_size(self.card.root, os.environ) if self.card.root else None

    @property
    def max_model_len(self) -> int | None:
        return self.card.max_model_len

    def resolved(self) -> Mapping[str, Any]:
        return resolved_settings("", self._metrics_page())

    def warnings(self) -> tuple[str, ...]:
        return ()

    def metrics(self) -> Mapping[str, float]:
        return metric_sums(self._metrics_page())

    def exit_code(self) -> int | None:
        return None  # not ours to know

    def log_tail(self, lines: int) -> tuple[str, ...]:  # noqa: ARG002
        return ()

    def failure(self, phase: Phase) -> Failure | None:
        """Why it can't be reached any more; a server that is merely slow to answer lives."""
        try:
            get(self.endpoint, f"{self.endpoint.base_path}/models")
        except TimeoutError:
            return None
        except (OSError, http.client.HTTPException) as error:
            return Failure(
                outcome=Outcome.ENVIRONMENT,
                fault=Fault.ENVIRONMENT,
                phase=phase,
                cause=f"{address(self.endpoint)} answers no more: {_reason(error)}",
                remedy="the server has ended, or the network to it: its own log says more",
            )
        return None

    def _metrics_page(self) -> str:
        with contextlib.suppress(OSError, http.client.HTTPException):
            answer = get(self.endpoint, f"{_prefix(self.endpoint)}/metrics")
            return answer.text if answer.status == 200 else ""
        return ""


# --- the address ------------------------------------------------------------------------------------------------------


def parse_url(url: str) -> Endpoint:
    """Return the endpoint that `url` names, its model still to be found; the path ends in /v1 unless it names another
    version. Raises InputError for what is no base URL of an HTTP server."""
    text = url if "://" in url else f"http://{url}"
    try:
        parts = urlsplit(text)
        port = parts.port
    except ValueError as error:
        raise InputError(f"{url!r} is no URL: {error}", "give it as http://host:port") from error
    _check_parts(url, parts)
    tls = parts.scheme == "https"
    return Endpoint(
        host=parts.hostname or "",
        port=port or (443 if tls else 80),
        model_name="",
        tls=tls,
        base_path=_base_path(parts.path),
    )


def _check_parts(url: str, parts: SplitResult) -> None:
    if parts.scheme not in {"http", "https"}:
        raise InputError(f"{url!r} is not an URL of HTTP: its scheme is {parts.scheme!r}", "give http:// or https://")
    if parts.username is not None or parts.password is not None:
        raise InputError(
            "the URL carries a user name or a password",
            _HOW_KEYS,
        )
    if parts.query or parts.fragment:
        raise InputError(f"{url!r} has a query or a fragment", "give the base URL alone, as http://host:8000/v1")
    if not parts.hostname:
        raise InputError(f"{url!r} names no host", "give it as http://host:port")


def _base_path(path: str) -> str:
    path = path.rstrip("/")
    for route in _ROUTES:
        path = path.removesuffix(route)
    last = path.rpartition("/")[2]
    return path if last[:1] == "v" and last[1:2].isdigit() else f"{path}/v1"


def address(endpoint: Endpoint) -> str:
    """Return the base URL of an endpoint, as `http://host:8000/v1`."""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{'https' if endpoint.tls else 'http'}://{host}:{endpoint.port}{endpoint.base_path}"


def _prefix(endpoint: Endpoint) -> str:
    """The path before /v1: where a server behind a proxy has its other pages."""
    return endpoint.base_path.rpartition("/")[0]


def get(endpoint: Endpoint, path: str, *, timeout_s: float = ASK_TIMEOUT_S) -> Answer:
    """GET a page of the endpoint's origin, with its key; no proxy is used. Raises OSError and HTTPException."""
    if endpoint.tls:
        context = ssl.create_default_context()
        connection: http.client.HTTPConnection = http.client.HTTPSConnection(
            endpoint.host, endpoint.port, timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(endpoint.host, endpoint.port, timeout=timeout_s)
    headers = {"Authorization": f"Bearer {endpoint.api_key}"} if endpoint.api_key else {}
    with contextlib.closing(connection):
        connection.request("GET", path, headers=headers)
        response = connection.getresponse()
        return Answer(status=response.status, text=read_page(response, timeout_s).decode(errors="replace"))


# --- finding what is served -------------------------------------------------------------------------------------------


def connect(url: str, *, model: str | None = None, api_key: str | None = None) -> EndpointServer:
    """Return the server at `url`, serving `model` (None: the only one that it has).

    Raises InputError for an URL that is none and for a model that the server doesn't have, EnvironmentFault when
    nothing answers, or not as an OpenAI API does.
    """
    endpoint = replace(parse_url(url), api_key=api_key)
    try:
        answer = get(endpoint, f"{endpoint.base_path}/models")
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise _unreachable(endpoint, error) from error
    card = _choose(_cards(answer), model, endpoint, answer)
    about = _about(endpoint)
    version = about.get("version")
    return EndpointServer(
        endpoint=replace(endpoint, model_name=card.name),
        card=card,
        version=version if isinstance(version, str) else None,
        simulated=about.get("simulated") is True,
    )


def _cards(answer: Answer) -> list[Card]:
    data = answer.json().get("data") if answer.status == 200 else None
    entries = data if isinstance(data, list) else []
    return [_card(entry) for entry in entries if isinstance(entry, dict) and isinstance(entry.get("id"), str)]


def _card(entry: Mapping[str, Any]) -> Card:
    root, length = entry.get("root"), entry.get("max_model_len")
    return Card(
        name=entry["id"],
        root=root if isinstance(root, str) else None,
        max_model_len=length if isinstance(length, int) else None,
    )


def _choose(cards: Sequence[Card], model: str | None, endpoint: Endpoint, answer: Answer) -> Card:
    if answer.status in {401, 403}:
        key = "it refuses this key" if endpoint.api_key else "it wants a key"
        raise EnvironmentFault(
            f"{address(endpoint)}: HTTP {answer.status}, {key}",
            _HOW_KEYS,
        )
    if not cards and model is not None and answer.status == 404:
        return Card(name=model)  # a server without a list; the first request will tell
    if not cards:
        raise EnvironmentFault(
            f"{address(endpoint)} answers, but not as an OpenAI API: GET {endpoint.base_path}/models gave"
            f" HTTP {answer.status} and no list of models",
            "check port and path; name the model with --model if this server has no such list",
        )
    names = [card.name for card in cards]
    listed = ", ".join(names[:_SHOWN_MODELS]) + (", …" if len(names) > _SHOWN_MODELS else "")
    if model is None and len(cards) > 1:
        raise InputError(f"the server has {len(cards)} models: {listed}", "choose one with --model")
    found = next((card for card in cards if model in {None, card.name}), None)
    if found is None:
        raise InputError(f"the server has no model called {model!r}", f"it serves: {listed}")
    return found


def _about(endpoint: Endpoint) -> Mapping[str, Any]:
    """What GET /version says (vLLM's route); {} where there is none."""
    with contextlib.suppress(OSError, http.client.HTTPException):
        answer = get(endpoint, f"{_prefix(endpoint)}/version")
        return answer.json() if answer.status == 200 else {}
    return {}


def _unreachable(endpoint: Endpoint, error: Exception) -> EnvironmentFault:
    hints = (
        (ssl.SSLCertVerificationError, "its certificate is not trusted here: add its issuer to SSL_CERT_FILE"),
        (ssl.SSLError, "does it speak TLS at all? if not, use http://"),
        (ConnectionRefusedError, "is the server started, and does it listen on this host and port?"),
        (TimeoutError, "is it behind a firewall, or hanging?"),
        (http.client.HTTPException, "it answers something else than HTTP: if it speaks TLS, use https://"),
    )
    hint = next((text for kind, text in hints if isinstance(error, kind)), "check host and port")
    return EnvironmentFault(f"{address(endpoint)} can't be reached: {_reason(error)}", hint)


def _reason(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {ASK_TIMEOUT_S:g} s"
    return (error.strerror if isinstance(error, OSError) else None) or str(error) or type(error).__name__
