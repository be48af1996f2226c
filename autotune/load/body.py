"""Requests as the bytes that go over the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from autotune.errors import InputError
from autotune.load.dialect import Dialect, Feature
from autotune.records.trial import Endpoint, RequestPlan

_HEADER_UNSAFE = re.compile(r"[^\x20-\x7e]")


def renderer(endpoint: Endpoint, nonce: str, dialect: Dialect) -> Callable[[RequestPlan], bytes]:
    """Return the function that writes a request for `endpoint` as HTTP/1.1 head and body, in its dialect.

    Each carries `X-Request-Id: autotune-<nonce>-<index>`, by which server logs can be matched. Raises InputError for an
    endpoint that would break the HTTP head.
    """
    for name, value in (("host", endpoint.host), ("base_path", endpoint.base_path), ("api_key", endpoint.api_key)):
        if value is not None and _HEADER_UNSAFE.search(value):
            raise InputError(f"the endpoint's {name} has characters that HTTP can't carry", f"check {name}")
    key = f"Authorization: Bearer {endpoint.api_key}\r\n" if endpoint.api_key else ""
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    base = endpoint.base_path.rstrip("/")

    def render(request: RequestPlan) -> bytes:
        path = "completions" if request.messages is None else "chat/completions"
        body = json.dumps(body_of(endpoint.model_name, request, dialect), separators=(",", ":")).encode()
        return (
            f"POST {base}/{path} HTTP/1.1\r\nHost: {host}:{endpoint.port}\r\n{key}"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"X-Request-Id: autotune-{nonce}-{request.index}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    return render


def body_of(model: str, request: RequestPlan, dialect: Dialect) -> dict[str, Any]:
    """Return the body of a request in a server's dialect.

    Synthetic prompts force the exact output length; conversations end where the model ends them.
    """
    prompt: dict[str, Any]
    forced: dict[Feature, Any] = {}
    if request.messages is not None:
        prompt = {"messages": request.messages}
    else:
        prompt = {"prompt": request.prompt_ids if dialect.has(Feature.PROMPT_IDS) else _text(request, dialect)}
        forced = {Feature.MIN_TOKENS: request.output_tokens, Feature.IGNORE_EOS: True}
    count = "continuous_usage_stats"
    options = {
        **forced,
        Feature.TEMPERATURE: 0,
        Feature.STREAM_OPTIONS: {"include_usage": True} | ({count: True} if dialect.chunk_usage else {}),
    }
    return {
        "model": request.model or model,
        **prompt,
        "max_tokens" if dialect.has(Feature.MAX_TOKENS) else "max_completion_tokens": request.output_tokens,
        "stream": True,
        **{feature.value: value for feature, value in options.items() if dialect.has(feature)},
        **request.extra_body,
    }


def _text(request: RequestPlan, dialect: Dialect) -> str:
    if request.prompt_text is not None:
        return request.prompt_text
    if dialect.decode is None or request.prompt_ids is None:
        raise InputError(
            "this server takes no token ids as a prompt, and there is no tokenizer to write them as text",
            "name the served model's tokenizer, or use a dataset",
        )
    return dialect.decode(request.prompt_ids)
