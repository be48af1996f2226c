"""aiperf as a cross-check, as of aiperf 0.13: `aiperf profile`, fed with our request bodies one by one.

A row of a `mooncake_trace` may carry a whole `payload`, so it sends exactly our bodies; `profile_export.jsonl` gives
every request back, `profile_export_aiperf.json` its own figures.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from autotune.bench.replay import Replay
from autotune.bench.tools import PERCENTILES, SHARED_DIFFERENCES, Answered, tokenizer_arguments, unreadable
from autotune.engines.endpoint import EndpointServer, address
from autotune.load import Dialect
from autotune.load.body import body_of
from autotune.records.trial import RequestRecord

_TRACE = "payloads.jsonl"
_SUMMARY, _REQUESTS = "profile_export_aiperf.json", "profile_export.jsonl"
_RATES = {
    "output_token_throughput": "output_tok_per_s",
    "total_token_throughput": "total_tok_per_s",
    "request_throughput": "request_rps",
}
_LATENCIES = {
    "time_to_first_token": "ttft_ms",
    "inter_token_latency": "tpot_ms",  # (latency - TTFT) / (tokens - 1) of a request: what is called TPOT elsewhere
    "request_latency": "e2e_ms",
}


class Aiperf:
    """Follows `tools.Tool`."""

    name = "aiperf"
    command = ("aiperf", "profile")
    install = "pip install aiperf (0.13 or newer), or say where it is: --cross-check-command '.venv/bin/aiperf profile'"
    differences = (
        *SHARED_DIFFERENCES,
        'what it calls "inter token latency" is a request\'s TPOT, and is compared as such',
        "it opens connections as it goes: its first requests pay for them",
    )

    def arguments(self, replay: Replay, server: EndpointServer, folder: Path, command: Sequence[str]) -> list[str]:
        """Write the request bodies, and return the arguments that send them."""
        model = server.endpoint.model_name
        (folder / _TRACE).write_text("".join(json.dumps(row) + "\n" for row in payloads(replay, model)))
        closed = ["--no-fixed-schedule", "--concurrency", str(replay.concurrency)]
        timing = ["--fixed-schedule"] if replay.concurrency is None else closed
        return [
            *("--model", model, "--url", address(server.endpoint), "--endpoint-type", "completions", "--streaming"),
            *("--input-file", str(folder / _TRACE), "--custom-dataset-type", "mooncake_trace"),
            *("--dataset-sampling-strategy", "sequential", "--request-count", str(len(replay.requests)), *timing),
            *(*tokenizer_arguments(server, command), "--use-server-token-count"),
            *("--export-level", "records", "--artifact-dir", str(folder), "--ui", "none", "--no-gpu-telemetry"),
        ]

    def read(self, replay: Replay, folder: Path) -> Answered:
        """Return what the two files hold."""
        try:
            summary = json.loads((folder / _SUMMARY).read_text())
            rows = [json.loads(line) for line in (folder / _REQUESTS).read_text().splitlines()]
            version = summary.get("aiperf_version")
            return Answered(said=said(summary), requests=tuple(requests(rows, replay)), version=version)
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise unreadable(self.name, repr(error)) from error


def payloads(replay: Replay, model: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of the input file: a body of our own client, and in an open loop when it is due, in ms."""
    for request in replay.requests:
        due = {} if request.at_s is None else {"timestamp": round(request.at_s * 1e3)}
        yield {**due, "output_length": request.output_tokens, "payload": body_of(model, request, Dialect())}


def said(summary: Mapping[str, Any]) -> dict[str, float]:
    """Return its own figures by our names."""
    figures = {ours: float(summary[theirs]["avg"]) for theirs, ours in _RATES.items() if theirs in summary}
    for theirs, ours in _LATENCIES.items():
        figures[f"{ours}.mean"] = float(summary[theirs]["avg"])
        for percentile in PERCENTILES:
            figures[f"{ours}.p{percentile}"] = float(summary[theirs][f"p{percentile}"])
    return figures


def requests(rows: Sequence[Mapping[str, Any]], replay: Replay) -> Iterator[RequestRecord]:
    """Yield its requests as records, in the order in which they were sent: it doesn't say which body each had, so the
    lengths asked for are not known. Its clock is the wall's, in ns."""
    profiled = [row for row in rows if row["metadata"].get("benchmark_phase", "profiling") == "profiling"]
    profiled.sort(key=lambda row: (row["metadata"]["request_start_ns"], row["metadata"]["session_num"]))
    due = [request.at_s or 0.0 for request in replay.requests]
    begun = [row["metadata"]["request_start_ns"] / 1e9 for row in profiled]
    t0 = min(at - planned for at, planned in zip(begun, due, strict=False))
    for index, row in enumerate(profiled):
        yield _request(index, row, begun[index] - t0, replay)


def _request(index: int, row: Mapping[str, Any], sent_s: float, replay: Replay) -> RequestRecord:
    metrics = {name: metric["value"] for name, metric in row["metrics"].items()}
    failed = bool(row.get("error")) or row["metadata"]["was_cancelled"] or "time_to_first_token" not in metrics
    chunks: tuple[float, ...] = ()
    if not failed:
        first_s = sent_s + metrics["time_to_first_token"] / 1e3
        chunks = tuple(accumulate((gap / 1e3 for gap in metrics.get("inter_chunk_latency", ())), initial=first_s))
    planned = replay.requests[index]
    return RequestRecord(
        index=index,
        scheduled_s=planned.at_s,
        sent_s=sent_s,
        chunk_s=chunks,
        done_s=chunks[-1] if chunks else None,
        status=None if failed else 200,
        prompt_tokens=metrics.get("usage_prompt_tokens"),
        output_tokens=metrics.get("usage_completion_tokens"),
        asked_output_tokens=planned.output_tokens,
        error="failed" if failed else None,
    )
