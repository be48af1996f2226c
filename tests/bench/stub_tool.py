"""Stands in for `vllm bench serve`: replays its trace in no time, each request 100 ms, 1 ms a token after the first."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def option(name: str) -> str:
    return sys.argv[sys.argv.index(name) + 1]


def result(rows: list[dict[str, Any]]) -> dict[str, Any]:
    clients = int(option("--max-concurrency")) if "--max-concurrency" in sys.argv else None
    starts = [row["timestamp"] if clients is None else index // clients * 0.2 for index, row in enumerate(rows)]
    lengths = [row["output_length"] for row in rows]
    figures = {"output_throughput": 1000.0, "total_token_throughput": 9000.0, "request_throughput": 10.0}
    for name in ("ttft", "tpot", "itl", "e2el"):
        figures |= {f"{stat}_{name}_ms": 1.0 for stat in ("mean", "p50", "p90", "p95", "p99")}
    return {
        **figures,
        "start_times": [1000.0 + start for start in starts],
        "ttfts": [0.1] * len(rows),
        "itls": [[0.001] * (length - 1) for length in lengths],
        "input_lens": [row["input_length"] for row in rows],
        "output_lens": lengths,
        "errors": [""] * len(rows),
    }


def main() -> int:
    if os.environ.get("STUB_TOOL") == "fails":
        sys.stderr.write(f"importing the world\nno tokenizer for this model, key {os.environ.get('OPENAI_API_KEY')}\n")
        return 3
    rows = [json.loads(line) for line in Path(option("--dataset-path")).read_text().splitlines()]
    Path(option("--result-dir"), option("--result-filename")).write_text(json.dumps(result(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
