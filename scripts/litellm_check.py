"""Runs LiteLLM's own router on a file of `autotune export --format litellm`, against servers that only count.

    pip install litellm pyyaml
    python scripts/litellm_check.py litellm.yaml

Prints how many of 100 requests went where by the file's weights, then with `rpm` lowered to 20: beyond it LiteLLM
answers 429 itself, or turns to the fallback where the file has one.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import yaml
from litellm import Router

REQUESTS, LOW_RPM = 100, 20
ANSWER = {
    "id": "x",
    "object": "chat.completion",
    "created": 1,
    "model": "m",
    "choices": [{"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "hi"}}],
    "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
}


def counting_server(name: str, hits: Counter[str]) -> str:
    """Start a server that answers every request and counts it; return its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            hits[name] += 1
            body = json.dumps(ANSWER).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}/v1"


def served(document: dict[str, Any], hits: Counter[str]) -> list[dict[str, Any]]:
    """The file's models, each at a counting server, with new ids: LiteLLM counts by them, whatever the router."""
    models = []
    for entry in document["model_list"]:
        role = entry["model_info"]["id"].rpartition("-")[2]
        parameters = {**entry["litellm_params"], "api_base": counting_server(role, hits), "api_key": "none"}
        models.append({**entry, "litellm_params": parameters, "model_info": {"id": f"{role}-{id(hits)}"}})
    return models


async def asked(document: dict[str, Any], rpm: int | None) -> str:
    """Send the requests and say where they went."""
    hits: Counter[str] = Counter()
    models = served(document, hits)
    for entry in models:
        if rpm is not None and "api_base" in entry["litellm_params"] and not entry["model_name"].endswith("-fallback"):
            entry["litellm_params"]["rpm"] = rpm
    router = Router(model_list=models, **document["router_settings"])
    refused = 0
    for _ in range(REQUESTS):
        try:
            await router.acompletion(model=models[0]["model_name"], messages=[{"role": "user", "content": "x"}])
        except Exception as error:
            if getattr(error, "status_code", 429) != 429:  # LiteLLM's own error, or that no deployment is left
                raise
            refused += 1
    return f"{dict(sorted(hits.items()))}, refused {refused}"


def main() -> None:
    logging.disable(logging.CRITICAL)
    document = yaml.safe_load(Path(sys.argv[1]).read_text())
    print("as written:  ", asyncio.run(asked(document, None)))
    print(f"rpm {LOW_RPM}:      ", asyncio.run(asked(document, LOW_RPM)))


if __name__ == "__main__":
    main()
