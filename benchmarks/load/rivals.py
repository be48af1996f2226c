"""Other load generators on the same cells: what they report against the same truth, where they are installed.

Their TTFT counts from when they sent a request, ours from when it was due, so ours is charged with what it sent late.
"""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.load.cells import (
    INPUT_TOKENS,
    ITL_MS,
    OUTPUT_HIGH,
    OUTPUT_LOW,
    TTFT_MS,
    Cell,
    Errors,
    figures,
    gap_errors,
)
from benchmarks.load.truth import Truth, TruthServer

OUTPUT_TOKENS = (OUTPUT_LOW + OUTPUT_HIGH) // 2
RUN_MAX_S = 180.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """A request as a rival reports it."""

    name: str
    ttft_s: float
    gaps_s: Sequence[float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """A rival's run: `overhead_s` is its wall time beyond the load's own, None errors that it gave nothing: `why`."""

    errors: Errors | None
    overhead_s: float = 0.0
    why: str = ""


class VllmBench:
    name = "vllm bench serve"

    def __init__(self, program: str, tokenizer: str) -> None:
        self._program = program
        self._tokenizer = tokenizer

    def argv(self, cell: Cell, port: int, requests: int, folder: Path) -> list[str]:
        load = ["--max-concurrency", str(cell.streams)] if cell.streams else ["--request-rate", str(cell.rps)]
        return [
            *(self._program, "bench", "serve", "--backend", "vllm", "--endpoint", "/v1/completions"),
            *("--host", "127.0.0.1", "--port", str(port), "--model", "truth", "--tokenizer", self._tokenizer),
            *("--dataset-name", "random", "--random-input-len", str(INPUT_TOKENS)),
            *("--random-output-len", str(OUTPUT_TOKENS), "--num-prompts", str(requests), *load),
            *("--request-id-prefix", "rival-", "--ready-check-timeout-sec", "0", "--disable-tqdm"),
            *("--save-result", "--save-detailed", "--result-dir", str(folder), "--result-filename", "result.json"),
        ]

    def observed(self, folder: Path) -> Iterable[Observed]:
        result = json.loads((folder / "result.json").read_text())
        for index, (ttft_s, gaps_s) in enumerate(zip(result["ttfts"], result["itls"], strict=True)):
            yield Observed(name=f"rival-{index}", ttft_s=ttft_s, gaps_s=gaps_s)


class Aiperf:
    name = "aiperf"

    def __init__(self, program: str, tokenizer: str) -> None:
        self._program = program
        self._tokenizer = tokenizer

    def argv(self, cell: Cell, port: int, requests: int, folder: Path) -> list[str]:
        load = ["--concurrency", str(cell.streams)] if cell.streams else ["--request-rate", str(cell.rps)]
        return [
            *(
                self._program,
                "profile",
                "-m",
                "truth",
                "--tokenizer",
                self._tokenizer,
                "--endpoint-type",
                "completions",
            ),
            *("--url", f"127.0.0.1:{port}", "--streaming", "--request-count", str(requests), *load),
            *("--synthetic-input-tokens-mean", str(INPUT_TOKENS), "--synthetic-input-tokens-stddev", "0"),
            *("--output-tokens-mean", str(OUTPUT_TOKENS), "--output-tokens-stddev", "0", "--random-seed", "1"),
            *("--ui-type", "none", "--artifact-dir", str(folder)),
        ]

    def observed(self, folder: Path) -> Iterable[Observed]:
        for line in (folder / "profile_export.jsonl").read_text().splitlines():
            record = json.loads(line)
            metrics = record["metrics"]
            yield Observed(
                name=record["metadata"]["x_request_id"],
                ttft_s=metrics["time_to_first_token"]["value"] / 1e3,
                gaps_s=[gap_ms / 1e3 for gap_ms in metrics.get("inter_chunk_latency", {}).get("value", [])],
            )


Rival = VllmBench | Aiperf


def run(rival: Rival, cell: Cell, program: Path, core: int, duration_s: float) -> Ran:
    """Run the cell with a rival; a failure is told in a word, not raised."""
    life_s = (TTFT_MS + OUTPUT_TOKENS * ITL_MS) / 1e3
    requests = round(duration_s * (cell.rps or (cell.streams or 0) / life_s))
    folder = program.parent / rival.name.split()[0]
    folder.mkdir(exist_ok=True)
    begun_s = time.monotonic()
    with TruthServer(program, ttft_ms=TTFT_MS, itl_ms=cell.itl_ms, core=core) as server:
        argv = rival.argv(cell, server.port, requests, folder)
        try:
            done = subprocess.run(argv, capture_output=True, text=True, timeout=RUN_MAX_S, check=False)
        except subprocess.TimeoutExpired:
            return Ran(errors=None, why=f"not done within {RUN_MAX_S:g} s")
    if done.returncode != 0:
        said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
        return Ran(errors=None, why=f"exit code {done.returncode}: {said[-1] if said else ''}")
    truths = server.log()
    load_s = max(t.sent_s[-1] for t in truths.values() if t.sent_s) - min(t.arrived_s for t in truths.values())
    return Ran(errors=_compared(rival.observed(folder), truths), overhead_s=time.monotonic() - begun_s - load_s)


def _compared(observed: Iterable[Observed], truths: Mapping[str, Truth]) -> Errors:
    """Requests of which the rival reports fewer gaps than there were are left out of the gaps only; those without a
    name are its own checks of the server."""
    seen = [(one, truths[one.name]) for one in observed if one.name in truths]
    return Errors(
        requests=len(seen),
        failed=len(truths.keys() - {"-"}) - len(seen),
        **figures(
            [(one.ttft_s - truth.ttft_s) * 1e3 for one, truth in seen],
            [gap_errors(one.gaps_s, truth) for one, truth in seen if len(one.gaps_s) == len(truth.sent_s) - 1],
        ),
    )
