"""Measures the real landscape: every configuration of a small grid on a real vLLM on the CPU, `data/vllm_cpu.csv`.

    .venv-vllm/bin/python benchmarks/search/measure_vllm_cpu.py            # what is missing; 20 minutes on 2 idle cores
    .venv-vllm/bin/python benchmarks/search/measure_vllm_cpu.py --seconds 150

Run by the Python that has vLLM (`make vllm-env`), so nothing of autotune is imported. vLLM is imported once; each
configuration is a forked child that makes an engine, keeps it busy with 16 clients in a closed loop, twice, and ends. A
row is written as soon as it is measured, in random order, so that a run that was stopped goes on where it was.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).parent / "data" / "vllm_cpu.csv"
MODEL = ROOT / ".venv-vllm" / "tiny-model"
LOG = ROOT / "runs" / "bench-search" / "vllm_cpu.log"  # what the engines have to say

GRID: Mapping[str, Sequence[Any]] = {
    "max_num_seqs": (2, 6, 16, 32),
    "max_num_batched_tokens": (64, 192, 768),
    "enable_chunked_prefill": (True, False),
    "enable_prefix_caching": (True, False),
    "block_size": (32, 128),
}
MAX_MODEL_LEN = 192
CLIENTS, WARM_S, LEVEL_S, REPEATS = 16, 1.5, 4.0, 2
PROMPT, ANSWER, PREFIX, GROUPS = (97, 160), (16, 32), 96, 4  # tokens, as in landscapes/vllm-cpu.yaml
VOCABULARY = (200, 2_000)
SEED = 1
METRICS = ("output_tok_per_s", "ttft_ms.p50", "ttft_ms.p90", "tpot_ms.p50", "tpot_ms.p90")
FIELDS = (*GRID, "repeat", *METRICS, "startup_s", "load_average")
ENVIRONMENT = {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",  # the engine lives in the child itself
    "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB
    "VLLM_LOGGING_LEVEL": "ERROR",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=1e9, help="begin no further configuration after so long")
    until_s = time.monotonic() + parser.parse_args().seconds
    missing = [each for each in configurations() if _key(each) not in known()]
    print(f"{len(missing)} configurations are missing", file=sys.stderr)
    if not missing:
        return 0
    LOG.parent.mkdir(parents=True, exist_ok=True)
    os.environ |= ENVIRONMENT
    import vllm.model_executor.models.llama  # type: ignore[import-not-found]  # noqa: PLC0415 - ten seconds, which every child is spared
    import vllm.v1.engine.llm_engine  # type: ignore[import-not-found]  # noqa: F401, PLC0415

    for done, configuration in enumerate(missing, 1):
        if time.monotonic() > until_s:
            print("stopped: run it again to go on", file=sys.stderr)
            return 0
        began = time.monotonic()
        rows = in_child(configuration)
        keep(configuration, rows)
        told = ", ".join(f"{row['output_tok_per_s']:.0f}" for row in rows) or "broke"
        print(f"{done}/{len(missing)} {configuration}: {told} tok/s, {time.monotonic() - began:.0f} s", file=sys.stderr)
    return 0


def configurations() -> list[dict[str, Any]]:
    """Every one that vLLM accepts, in an order that leaves no trend of the machine on any parameter."""
    every = [dict(zip(GRID, values, strict=True)) for values in itertools.product(*GRID.values())]
    legal = [c for c in every if c["enable_chunked_prefill"] or c["max_num_batched_tokens"] >= MAX_MODEL_LEN]
    random.Random(SEED).shuffle(legal)
    return legal


# --- the table --------------------------------------------------------------------------------------------------------


def known() -> set[str]:
    """The configurations that the table has."""
    if not TABLE.exists():
        return set()
    with TABLE.open(encoding="utf-8") as file:
        return {_key(row) for row in csv.DictReader(file)}


def _key(row: Mapping[str, Any]) -> str:
    return "|".join(str(row[name]) for name in GRID)


def keep(configuration: Mapping[str, Any], rows: Sequence[Mapping[str, float]]) -> None:
    """Append the rows; one without figures for a configuration that broke."""
    begin = not TABLE.exists()
    with TABLE.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS, lineterminator="\n")
        if begin:
            writer.writeheader()
        for repeat, row in enumerate(rows or [{}]):
            figures = {name: f"{value:.5g}" for name, value in row.items()}
            writer.writerow({**configuration, "repeat": repeat, **figures})


# --- a launch ---------------------------------------------------------------------------------------------------------


def in_child(configuration: Mapping[str, Any]) -> list[dict[str, float]]:
    """Measure in a process of its own; no rows when it broke."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(LOG, os.O_WRONLY | os.O_CREAT | os.O_APPEND), 2)
        try:
            with os.fdopen(writing, "w") as pipe:
                json.dump(list(measured(configuration)), pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    try:
        rows: list[dict[str, float]] = json.loads(text)
    except ValueError:
        return []
    return rows


def measured(configuration: Mapping[str, Any]) -> Iterator[dict[str, float]]:
    """Make an engine and measure it REPEATS times."""
    from vllm import EngineArgs  # noqa: PLC0415
    from vllm.v1.engine.llm_engine import LLMEngine  # noqa: PLC0415

    began = time.monotonic()
    arguments = EngineArgs(
        model=str(MODEL),
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=MAX_MODEL_LEN,
        disable_log_stats=True,
        **configuration,
    )
    engine = LLMEngine.from_engine_args(arguments)
    startup_s = time.monotonic() - began
    clients = Clients(engine)
    clients.run(WARM_S)
    for _ in range(REPEATS):
        found = clients.run(LEVEL_S)
        yield {**found, "startup_s": startup_s, "load_average": os.getloadavg()[0]}


class Clients:
    """So many clients in a closed loop, stepping the engine themselves."""

    def __init__(self, engine: Any) -> None:  # noqa: ANN401 - vLLM is not typed here
        self.engine = engine
        self.random = random.Random(SEED)
        self.prefixes = [self._tokens(PREFIX) for _ in range(GROUPS)]
        self.sent = itertools.count()
        self.running: dict[str, list[float]] = {}  # times: sent, then each token
        for _ in range(CLIENTS):
            self._send()

    def run(self, seconds: float) -> dict[str, float]:
        """Step until so long has passed; figures of what ended meanwhile."""
        begin, ended, tokens = time.perf_counter(), [], 0
        while (now := time.perf_counter()) < begin + seconds:
            for output in self.engine.step():
                now = time.perf_counter()
                times = self.running[output.request_id]
                fresh = len(output.outputs[0].token_ids) - (len(times) - 1)
                times += [now] * fresh
                tokens += fresh
                if output.finished:
                    ended.append(self.running.pop(output.request_id))
                    self._send()
        ttft_ms = [1e3 * (times[1] - times[0]) for times in ended]
        tpot_ms = [1e3 * (times[-1] - times[1]) / (len(times) - 2) for times in ended if len(times) > 2]
        return {
            "output_tok_per_s": tokens / (now - begin),
            **{f"ttft_ms.p{percent}": _quantile(ttft_ms, percent) for percent in (50, 90)},
            **{f"tpot_ms.p{percent}": _quantile(tpot_ms, percent) for percent in (50, 90)},
        }

    def _send(self) -> None:
        from vllm import SamplingParams  # noqa: PLC0415

        prefix = self.random.choice(self.prefixes)
        prompt = prefix + self._tokens(self.random.randint(*PROMPT) - PREFIX)
        answer = self.random.randint(*ANSWER)
        name = str(next(self.sent))
        self.running[name] = [time.perf_counter()]
        sampling = SamplingParams(max_tokens=answer, ignore_eos=True, temperature=0.0)
        self.engine.add_request(name, {"prompt_token_ids": prompt}, sampling)

    def _tokens(self, count: int) -> list[int]:
        return [self.random.randint(*VOCABULARY) for _ in range(count)]


def _quantile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) * percent // 100] if ordered else float("nan")


if __name__ == "__main__":
    sys.exit(main())
