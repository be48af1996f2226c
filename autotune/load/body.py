"""Requests as the bytes that go over the wire."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from autotune.errors import InputError
from autotune.records.trial import Endpoint, RequestPlan

_HEADER_UNSAFE = re.compile(r"[^\x20-\x7e]")


def renderer(endpoint: Endpoint, nonce: str) -> Callable[[RequestPlan], bytes]:
    """Return the function that writes a request for `endpoint` as HTTP/1.1 head and body.

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
        body = json.dumps(_body(endpoint.model_name, request), separators=(",", ":")).encode()
        return (
            f"POST {base}/{path} HTTP/1.1\r\nHost: {host}:{endpoint.port}\r\n{key}"
            f"Content-Type: application/json\r\nAccept: text/event-stream\r\n"
            f"X-Request-Id: autotune-{nonce}-{request.index}\r\nContent-Length: {len(body)}\r\n\r\n"
        ).encode() + body

    return render


def _body(model: str, request: RequestPlan) -> dict[str, Any]:
    """Synthetic prompts force the exact output length; conversations end where the model ends them."""
    prompt: dict[str, Any]
    if request.messages is not None:
        prompt = {"messages": request.messages}
    else:
        prompt = {"prompt": request.prompt_ids, "min_tokens": request.output_tokens, "ignore_eos": True}
    return {
        "model": request.model or model,
        **prompt,
        "max_tokens": request.output_tokens,
        "temperature": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **request.extra_body,
    }
