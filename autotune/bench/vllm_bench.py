"""`vllm bench serve` as a cross-check, as of vLLM 0.32 (vllm/benchmarks/serve.py).

It is given the level as a `timed_trace`: exact lengths, token ids of its own drawing, prefixes by hash, and for an open
loop the times of arrival. `--save-detailed` gives every request back.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotune.bench.replay import Replay
from autotune.bench.tools import PERCENTILES, SHARED_DIFFERENCES, Answered, tokenizer_arguments, unreadable
from autotune.engines.endpoint import EndpointServer, address
from autotune.records.trial import RequestPlan, RequestRecord

RESULT = "result.json"
_TRACE = "trace.jsonl"
_FRESH = 1_000_000  # hash ids from here on stand once; those below are the shared prefixes' groups
_RATES = {
    "output_throughput": "output_tok_per_s",
    "total_token_throughput": "total_tok_per_s",
    "request_throughput": "request_rps",
}
_LATENCIES = {"ttft": "ttft_ms", "tpot": "tpot_ms", "itl": "itl_ms", "e2el": "e2e_ms"}


class VllmBench:
    """Follows `tools.Tool`."""

    name = "vllm-bench"
    command = ("vllm", "bench", "serve")
    install = "pip install vllm (0.32 or newer), or say where it is: --cross-check-command '.venv/bin/vllm bench serve'"
    differences = SHARED_DIFFERENCES

    def arguments(self, replay: Replay, server: EndpointServer, folder: Path, command: Sequence[str]) -> list[str]:
        """Write the trace, and return the arguments that replay it."""
        chunk = chunk_tokens(replay.requests)
        (folder / _TRACE).write_text("".join(json.dumps(row) + "\n" for row in trace(replay.requests, chunk)))
        base = address(server.endpoint).removesuffix("/v1")
        timing = ["--self-timed"] if replay.concurrency is None else ["--max-concurrency", str(replay.concurrency)]
        return [
            *("--backend", "openai", "--base-url", base, "--endpoint", _path(server)),
            *("--model", server.endpoint.model_name, *tokenizer_arguments(server, command)),
            *("--dataset-name", "timed_trace", "--dataset-path", str(folder / _TRACE)),
            *("--timed-trace-chunk-hash-size", str(chunk), "--num-prompts", str(len(replay.requests)), *timing),
            *("--ignore-eos", "--temperature", "0", "--ready-check-timeout-sec", "0", "--disable-tqdm"),
            *("--percentile-metrics", ",".join(_LATENCIES), "--metric-percentiles", ",".join(map(str, PERCENTILES))),
            *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", RESULT),
        ]

    def read(self, replay: Replay, folder: Path) -> Answered:
        """Return what the result file holds."""
        try:
            result = json.loads((folder / RESULT).read_text())
            return Answered(said=said(result), requests=tuple(requests(result, replay)))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(self.name, repr(error)) from error


def _path(server: EndpointServer) -> str:
    """The route below what `--base-url` is given."""
    base = server.endpoint.base_path
    return "/v1/completions" if base.endswith("/v1") else "/completions"


def chunk_tokens(requests: Sequence[RequestPlan]) -> int:
    """Return how many tokens a hash id of the trace stands for: the shared prefix, or a whole prompt where none is."""
    shared = max(request.prefix_tokens for request in requests)
    return shared or max(request.prompt_tokens or 1 for request in requests)


def trace(requests: Sequence[RequestPlan], chunk: int) -> Iterator[dict[str, Any]]:
    """Yield the rows of the trace file. A hash id that stands in no other row gives tokens that no other has."""
    fresh = iter(range(_FRESH, 2**62))
    for request in requests:
        tokens = request.prompt_tokens or 1
        head = [request.prefix_group] if request.prefix_tokens else []
        tail = [next(fresh) for _ in range(-(-tokens // chunk) - len(head))]
        yield {
            "timestamp": request.at_s or 0.0,
            "input_length": tokens,
            "output_length": request.output_tokens,
            "hash_ids": head + tail,
        }


def said(result: dict[str, Any]) -> dict[str, float]:
    """Return its own figures by our names."""
    figures = {ours: float(result[theirs]) for theirs, ours in _RATES.items()}
    for theirs, ours in _LATENCIES.items():
        figures[f"{ours}.mean"] = float(result[f"mean_{theirs}_ms"])
        for percentile in PERCENTILES:
            figures[f"{ours}.p{percentile}"] = float(result[f"p{percentile}_{theirs}_ms"])
    return figures


def requests(result: dict[str, Any], replay: Replay) -> Iterator[RequestRecord]:
    """Yield its requests as records; a closed loop's clock starts with its first request, an open loop's so that the
    promptest request was sent when it was due."""
    begun = result["start_times"]
    due = [request.at_s or 0.0 for request in replay.requests]
    t0 = min(at - planned for at, planned in zip(begun, due, strict=True))
    for index, plan in enumerate(replay.requests):
        sent_s, failed = begun[index] - t0, bool(result["errors"][index])
        first_s = sent_s + result["ttfts"][index]
        chunks = () if failed else tuple(accumulate(result["itls"][index], initial=first_s))
        yield RequestRecord(
            index=index,
            scheduled_s=plan.at_s,
            sent_s=sent_s,
            chunk_s=chunks,
            done_s=chunks[-1] if chunks else None,
            status=None if failed else 200,
            prompt_tokens=result["input_lens"][index],
            output_tokens=None if failed else result["output_lens"][index],
            asked_prompt_tokens=plan.prompt_tokens,
            asked_output_tokens=plan.output_tokens,
            error="failed" if failed else None,
        )
